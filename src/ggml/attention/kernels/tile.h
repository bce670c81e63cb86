// A tile: products, softmax, products. The file that includes this has included in-place.h and defines
//   NR          columns that are multiplied together; K and V are packed in panels of so many keys and columns
//   ROW_STEP    rows likewise
//   MR          rows of a block in the softmax
//   GRAIN       columns of logits that are whole in a product with V
//   KEY_BLOCK   values whose product with some rows is computed at once
//   TILE_ROWS   rows of a tile
//   weights     how weights stand in place of logits
//   products    of a tile: its queries q, ld_q apart, as they are multiplied by K; and
//               multiply(n_rows, a, lda, b, n, c, ldc, add): c[n_rows][NR] = a[n_rows][n]*b[n][NR], added to c if add

namespace {

static_assert(H2O_ATTN_PAD % NR == 0 && TILE_ROWS <= H2O_ATTN_MAX_ROWS && TILE_ROWS % ROW_STEP == 0 && ROW_STEP % MR == 0, "");

inline int64_t round_up(int64_t x, int64_t step) {
    return (x + step - 1)/step*step;
}

// Packed keys, and the columns of their logits.
struct key_range {
    const h2o_attn_keys & keys;
    const int64_t         origin;

    // what some of n rows see, in whole steps
    int64_t end(int row, int n, int64_t step) const { return round_up(keys.visible[row + n - 1], step); }

    columns of_rows(int row, int first, int n) const {
        if (keys.n == 0) {
            return { origin, 0, nullptr };
        }
        return { origin, end(first, n, weights::N*VL), keys.visible + row };
    }
};

// f(first row, number of rows) for rows that are multiplied together
template <typename F>
inline void for_row_steps(int n_rows, const F & f) {
    for (int r = 0; r < n_rows; r += ROW_STEP) {
        f(r, (int) min_of(ROW_STEP, n_rows - r));
    }
}

// f(constant<number of rows>, first row, columns of own and of further keys) for blocks of rows in the softmax
template <typename F>
void for_softmax_blocks(const h2o_attn_tile & t, const key_range & own, const key_range & further, const F & f) {
    for_row_steps(t.n_rows, [&](int first, int n) {
        for (int r = first; r < first + n; r += MR) {
            with_constant<MR>((int) min_of(MR, first + n - r), [&](auto c) {
                f(c, r, own.of_rows(r, first, n), further.of_rows(r, first, n));
            });
        }
    });
}

// logits = q*k; n_next of the next keys are asked for
void multiply_k(const h2o_attn_tile & t, const products & p, const key_range & range, int64_t n_next) {
    if (range.keys.n == 0) {
        return;
    }
    const float * k = (const float *) range.keys.k;

    const int64_t d_k_pad = h2o_attn_pad(t.d_k);
    const int64_t n       = range.end(0, t.n_rows, 1);

    int64_t next = 0;
    for (int64_t key = 0; key < n; key += NR) {
        for (; next < n_next && next*n < (key + NR)*n_next; ++next) {
            prefetch_row(t.next_k, next);
            prefetch_row(t.next_v, next);
        }
        for_row_steps(t.n_rows, [&](int r, int m) {
            if (key < range.end(r, m, GRAIN)) {
                p.multiply(m, p.q + r*p.ld_q, p.ld_q, k + key*d_k_pad, t.d_k, t.logits + range.origin + r*t.ld + key, t.ld, false);
            }
        });
    }
}

// o = logits*v, added to o if add. The cuts between blocks of keys depend on no row: a row's result is its own.
void multiply_v(const h2o_attn_tile & t, const products & p, const key_range & range, bool add) {
    if (range.keys.n == 0) {
        return;
    }
    const float * v = (const float *) range.keys.v;

    const int64_t d_v_pad = h2o_attn_pad(t.d_v);
    const int64_t n       = range.end(0, t.n_rows, 1);

    for (int64_t key = 0; key < n; key += KEY_BLOCK) {
        for (int64_t i = 0; i < t.d_v; i += NR) {
            for_row_steps(t.n_rows, [&](int r, int m) {
                const int64_t end = min_of(range.end(r, m, GRAIN), key + KEY_BLOCK);
                if (key < end) {
                    p.multiply(m, t.logits + r*t.ld + range.origin + key, t.ld, v + i*range.keys.n + key*NR, end - key,
                            t.o + r*d_v_pad + i, d_v_pad, add || key > 0);
                }
            });
        }
    }
}

bool tile(const h2o_attn_tile & t) {
    const products p(t);

    const int64_t d_v_pad = h2o_attn_pad(t.d_v);

    const key_range own     = { t.own,     0 };
    const key_range further = { t.further, t.own.n };

    multiply_k(t, p, own,     t.n_next);
    multiply_k(t, p, further, 0);

    for_softmax_blocks(t, own, further, [&](auto c, int r, const columns & first, const columns & second) {
        constexpr int M = decltype(c)::value;

        float *       x       = t.logits + r*t.ld;
        const columns parts[] = { first, second };
        const float * sinks   = t.sinks ? t.sinks + r : nullptr;

        for (const columns & part : parts) {
            if (t.softcap > 0.0f) {
                cap_logits<M>(x, t.ld, part, t.softcap);
            }
        }
        mask_and_max<M>(x, t.ld, parts, sinks, t.m + r);

        vec_f sums[M] = {};
        exp_columns<weights, M>(x, t.ld, first, t.m + r, sums);
        exp_columns<weights, M>(x, t.ld, second, t.m + r, sums);
        add_lanes<M>(sums, sinks, t.m + r, t.l + r);
    });

    multiply_v(t, p, own,     false);
    multiply_v(t, p, further, true);

    for (int r = 0; r < t.n_rows; ++r) {
        const float f = 1.0f/t.l[r];
        for (int64_t i = 0; i < t.d_v; ++i) {
            t.o[r*d_v_pad + i] *= f;
        }
    }

    if (t.sums) {
        for_softmax_blocks(t, own, further, [&](auto c, int r, const columns & first, const columns &) {
            add_column_sums<weights, decltype(c)::value>(t.logits + r*t.ld, t.ld, first.end, t.l + r, t.counted + r, t.sums);
        });
    }

    return true;
}

const h2o_attn_kernel kernel = { TILE_ROWS, ROW_STEP, pack_k, pack_v, tile, in_place };

} // namespace
