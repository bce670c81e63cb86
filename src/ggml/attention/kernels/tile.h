// A tile: products, softmax, products. The file that includes this has included in-place.h and defines
//   KERNEL, ROUNDED_TILES  the kernel's name and its has_rounded_tiles
//   NR          columns that are multiplied together; K and V are packed in panels of NR keys and columns
//   ROW_STEP    rows likewise
//   MR          rows of a block in the softmax
//   GRAIN       columns of logits that are whole in a product with V
//   TILE_ROWS   rows of a tile
//   weights     how weights are stored in place of logits
//   pack_k, pack_v, pack_q
//   multiply    (n_rows, a, lda, b, n, c, ldc, add, is_rounded): c[n_rows][NR] = a[n_rows][n]*b[n][NR], added to c
//               if add, while a product_setup lives

namespace {

static_assert(H2O_ATTN_PAD % NR == 0 && TILE_ROWS <= H2O_ATTN_MAX_ROWS && TILE_ROWS % ROW_STEP == 0 &&
        TILE_ROWS % VL == 0 && ROW_STEP % MR == 0, "");

// how many of the keys the last of these rows sees, in whole steps
inline int64_t end_of(const h2o_attn_tile & t, int row, int n, int64_t step) {
    return round_up(t.visible[row + n - 1], step);
}

// f(first row, number of rows) for rows that are multiplied together: about as many each time, unless a step has blocks
template <typename F>
inline void for_row_steps(int n_rows, const F & f) {
    const int n_steps = (n_rows + ROW_STEP - 1)/ROW_STEP;
    const int step    = ROW_STEP > MR ? ROW_STEP : (n_rows + n_steps - 1)/n_steps;
    for (int r = 0; r < n_rows; r += step) {
        f(r, (int) min_of(step, n_rows - r));
    }
}

// f(constant<number of rows>, first row, end of the columns that some row sees) for blocks of rows in the softmax
template <typename F>
void for_softmax_blocks(const h2o_attn_tile & t, const F & f) {
    for_row_steps(t.n_rows, [&](int first, int n) {
        const int64_t end = t.form == h2o_attn_form::ROWS ? round_up(t.n_keys, VL) : end_of(t, first, n, weights::N*VL);
        for (int r = first; r < first + n; r += MR) {
            with_constant<MR>((int) min_of(MR, first + n - r), [&](auto c) { f(c, r, end); });
        }
    });
}

// logits = q*k
void multiply_k(const h2o_attn_tile & t) {
    [[maybe_unused]] const product_setup setup;

    const int64_t d_k_pad = h2o_attn_pad(t.d_k);
    const int64_t n       = end_of(t, 0, t.n_rows, 1);

    for (int64_t key = 0; key < n; key += NR) {
        for_row_steps(t.n_rows, [&](int r, int m) {
            if (key < end_of(t, r, m, GRAIN)) {
                multiply(m, t.q + r*d_k_pad, d_k_pad, t.packed_k + key*d_k_pad, t.d_k, t.logits + r*t.ld + key, t.ld,
                        false, t.is_rounded);
            }
        });
    }
}

// o += logits*v
void multiply_v(const h2o_attn_tile & t) {
    [[maybe_unused]] const product_setup setup;

    const int64_t d_v_pad = h2o_attn_pad(t.d_v);
    for (int64_t i = 0; i < t.d_v; i += NR) {
        for_row_steps(t.n_rows, [&](int r, int m) {
            const int64_t end = end_of(t, r, m, GRAIN);
            if (end > 0) {
                multiply(m, t.logits + r*t.ld, t.ld, t.packed_v + i*t.n_keys, end, t.o + r*d_v_pad + i, d_v_pad, true,
                        t.is_rounded);
            }
        });
    }
}

void tile(const h2o_attn_tile & t) {
    float factors[TILE_ROWS] = {}; // of what the rows have so far
    float sums   [TILE_ROWS];

    for (int r = 0; r < t.n_rows; ++r) {
        factors[r] = t.m[r];
    }
    if (t.form == h2o_attn_form::PANELS) {
        multiply_k(t);
        for_softmax_blocks(t, [&](auto c, int r, int64_t end) {
            softmax<weights, decltype(c)::value>(t, r, end, sums + r);
        });
    } else {
        if (t.form == h2o_attn_form::ROWS) {
            multiply_rows_k(t);
        }
        for_softmax_blocks(t, [&](auto c, int r, int64_t end) {
            if (t.form == h2o_attn_form::BYTES) {
                multiply_byte_keys<decltype(c)::value>(t, r, end);
            }
            softmax<plain_weights, decltype(c)::value>(t, r, end, sums + r);
        });
    }
    for (int r = 0; r < t.n_rows; ++r) {
        factors[r] -= finite_or_0(t.m[r]);
    }
    for (int r = 0; r < t.n_rows; r += VL) {
        store(factors + r, exp_negative(load(factors + r)));
    }
    for (int r = 0; r < t.n_rows; ++r) {
        t.l[r] = factors[r]*t.l[r] + sums[r];
        if (factors[r] != 1.0f) {
            scale_row(t.o + r*h2o_attn_pad(t.d_v), t.d_v, factors[r]);
        }
    }
    switch (t.form) {
        case h2o_attn_form::PANELS: return multiply_v(t);
        case h2o_attn_form::ROWS:   return multiply_rows_v(t);
        case h2o_attn_form::BYTES:
            for_softmax_blocks(t, [&](auto c, int r, int64_t end) {
                multiply_byte_values<decltype(c)::value>(t, r, end);
            });
    }
}

void add_sums(const h2o_attn_tile & t, const int64_t * counted, const float * factors, float * sums) {
    for_softmax_blocks(t, [&](auto c, int r, int64_t end) {
        add_column_sums<weights, decltype(c)::value>(t.logits + r*t.ld, t.ld, end, factors + r, counted + r, sums);
    });
}

} // namespace

extern const h2o_attn_kernel KERNEL = { TILE_ROWS, ROW_STEP, ROUNDED_TILES, pack_k, pack_v, pack_q, pack_byte_q, pack_bytes,
    tile, add_sums, read_rows };
