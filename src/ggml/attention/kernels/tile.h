// A tile: products, softmax, products. The file that includes this has included in-place.h and defines
//   KERNEL      the kernel's name
//   NR          columns that are multiplied together; K and V are packed in panels of NR keys and columns
//   ROW_STEP    rows likewise
//   MR          rows of a block in the softmax
//   GRAIN       columns of logits that are whole in a product with V
//   KEY_BLOCK   values whose product with some rows is computed at once
//   TILE_ROWS   rows of a tile
//   weights     how weights are stored in place of logits
//   products    of a tile: its queries q, ld_q apart, in the form that is multiplied by K; and
//               multiply(n_rows, a, lda, b, n, c, ldc, add): c[n_rows][NR] = a[n_rows][n]*b[n][NR], added to c if add

namespace {

static_assert(H2O_ATTN_PAD % NR == 0 && TILE_ROWS <= H2O_ATTN_MAX_ROWS && TILE_ROWS % ROW_STEP == 0 &&
        ROW_STEP % MR == 0, "");

inline int64_t round_up(int64_t x, int64_t step) {
    return (x + step - 1)/step*step;
}

// how many of the keys the last of these rows sees, in whole steps
inline int64_t end_of(const h2o_attn_keys & keys, int row, int n, int64_t step) {
    return round_up(keys.visible[row + n - 1], step);
}

// f(first row, number of rows) for rows that are multiplied together
template <typename F>
inline void for_row_steps(int n_rows, const F & f) {
    for (int r = 0; r < n_rows; r += ROW_STEP) {
        f(r, (int) min_of(ROW_STEP, n_rows - r));
    }
}

// f(constant<number of rows>, first row, the columns of both kinds of keys) for blocks of rows in the softmax
template <typename F>
void for_softmax_blocks(const h2o_attn_tile & t, const F & f) {
    for_row_steps(t.n_rows, [&](int first, int n) {
        const auto columns_of = [&](const h2o_attn_keys & keys, int64_t origin, int row) {
            return columns { origin, keys.n > 0 ? end_of(keys, first, n, weights::N*VL) : 0, keys.visible + row };
        };
        for (int r = first; r < first + n; r += MR) {
            const columns seen[] = { columns_of(t.keys[0], 0, r), columns_of(t.keys[1], t.keys[0].n, r) };
            with_constant<MR>((int) min_of(MR, first + n - r), [&](auto c) { f(c, r, seen); });
        }
    });
}

// logits = q*k; n_next of the next keys are prefetched
void multiply_k(const h2o_attn_tile & t, const products & p, const h2o_attn_keys & keys, float * logits,
        int64_t n_next) {
    const float * k = (const float *) keys.k;

    const int64_t d_k_pad = h2o_attn_pad(t.d_k);
    const int64_t n       = keys.n > 0 ? end_of(keys, 0, t.n_rows, 1) : 0;

    int64_t next = 0;
    for (int64_t key = 0; key < n; key += NR) {
        for (; next < n_next && next*n < (key + NR)*n_next; ++next) {
            prefetch_row(t.next_k, next);
            prefetch_row(t.next_v, next);
        }
        for_row_steps(t.n_rows, [&](int r, int m) {
            if (key < end_of(keys, r, m, GRAIN)) {
                p.multiply(m, p.q + r*p.ld_q, p.ld_q, k + key*d_k_pad, t.d_k, logits + r*t.ld + key, t.ld, false);
            }
        });
    }
}

// o = logits*v, added to o if add. The cuts between blocks of keys depend on no row: a row's result is its own.
void multiply_v(const h2o_attn_tile & t, const products & p, const h2o_attn_keys & keys, const float * logits,
        bool add) {
    const float * v = (const float *) keys.v;

    const int64_t d_v_pad = h2o_attn_pad(t.d_v);
    const int64_t n       = keys.n > 0 ? end_of(keys, 0, t.n_rows, 1) : 0;

    for (int64_t key = 0; key < n; key += KEY_BLOCK) {
        for (int64_t i = 0; i < t.d_v; i += NR) {
            for_row_steps(t.n_rows, [&](int r, int m) {
                const int64_t end = min_of(end_of(keys, r, m, GRAIN), key + KEY_BLOCK);
                if (key < end) {
                    p.multiply(m, logits + r*t.ld + key, t.ld, v + i*keys.n + key*NR, end - key,
                            t.o + r*d_v_pad + i, d_v_pad, add || key > 0);
                }
            });
        }
    }
}

bool tile(const h2o_attn_tile & t) {
    const products p(t);

    const int64_t d_v_pad = h2o_attn_pad(t.d_v);

    vec_i finite = vec_i {} - 1;

    multiply_k(t, p, t.keys[0], t.logits, t.n_next);
    multiply_k(t, p, t.keys[1], t.logits + t.keys[0].n, 0);

    for_softmax_blocks(t, [&](auto c, int r, const columns (& seen)[2]) {
        softmax<weights, decltype(c)::value>(t, r, seen, t.sinks ? t.sinks + r : nullptr, finite);
    });

    multiply_v(t, p, t.keys[0], t.logits, false);
    multiply_v(t, p, t.keys[1], t.logits + t.keys[0].n, true);

    for (int r = 0; r < t.n_rows; ++r) {
        const float f = 1.0f/t.l[r];
        for (int64_t i = 0; i < t.d_v; i += VL) {
            float * o = t.o + r*d_v_pad + i;
            store(o, load(o)*f);
            check(load(o), finite);
        }
    }
    if (!all_lanes(finite)) {
        return false;
    }

    if (t.sums) {
        for_softmax_blocks(t, [&](auto c, int r, const columns (& seen)[2]) {
            constexpr int M = decltype(c)::value;
            add_column_sums<weights, M>(t.logits + r*t.ld, t.ld, seen[0].end, t.l + r, t.counted + r, t.sums);
        });
    }
    return true;
}

} // namespace

extern const h2o_attn_kernel KERNEL = { TILE_ROWS, ROW_STEP, pack_k, pack_v, tile, in_place };
