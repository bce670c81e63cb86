// The kernel in float32, with blocks of MR rows times NV vectors of VL floats in registers: these three, and the
// kernel's NAME and variable KERNEL, are defined by the file that includes this.

#include "h2o-attn-simd.h"

namespace {

constexpr int NR        = NV*VL; // columns of a block
constexpr int KEY_BLOCK = 256;   // keys of V times NR stay in the L1 cache
constexpr int TILE_ROWS = 48/MR*MR;

static_assert(H2O_ATTN_PAD % NR == 0 && TILE_ROWS <= H2O_ATTN_MAX_ROWS, "");

// Panels of NR keys: [panel][d][NR]
void pack_k(const float * rows, int64_t d, int64_t key, int64_t, void * k) {
    for (int64_t p = 0; p < H2O_ATTN_KEYS; p += NR) {
        float * panel = (float *) k + (key + p)*h2o_attn_pad(d);
        for (int64_t i = 0; i < d; ++i) {
            for (int64_t j = 0; j < NR; ++j) {
                panel[i*NR + j] = rows[(p + j)*d + i];
            }
        }
    }
}

// Panels of NR columns: [panel][key][NR]
void pack_v(const float * rows, int64_t d, int64_t key, int64_t n_k, void * v) {
    for (int64_t p = 0; p < d; p += NR) {
        float * panel = (float *) v + p*n_k + key*NR;
        for (int64_t i = 0; i < H2O_ATTN_KEYS; ++i) {
            for (int64_t j = 0; j < NR; ++j) {
                panel[i*NR + j] = p + j < d ? rows[i*d + p + j] : 0.0f;
            }
        }
    }
}

// c[M][NR] = a[M][n]*b[n][NR], added to c if add
template <int M>
void multiply(const float * a, int64_t lda, const float * b, int64_t n, float * c, int64_t ldc, bool add) {
    vec_f sum[M][NV] = {};

#pragma GCC unroll 4
    for (int64_t k = 0; k < n; ++k) {
        vec_f row[NV];
        for (int j = 0; j < NV; ++j) {
            row[j] = load(b + k*NR + j*VL);
        }
        for (int i = 0; i < M; ++i) {
            for (int j = 0; j < NV; ++j) {
                sum[i][j] += a[i*lda + k]*row[j];
            }
        }
    }

    for (int i = 0; i < M; ++i) {
        for (int j = 0; j < NV; ++j) {
            float * dst = c + i*ldc + j*VL;
            store(dst, add ? load(dst) + sum[i][j] : sum[i][j]);
        }
    }
}

// x = exp(x - m), l = row sums
template <int M, int N>
void exp_rows(float * x, int64_t ld, const columns (& parts)[N], const float * m, float * l) {
    vec_f sum[M] = {};
    for (const columns & part : parts) {
        for (int64_t j = part.start; j < part.start + part.n; j += VL) {
            for (int i = 0; i < M; ++i) {
                const vec_f e = exp_negative(load(x + i*ld + j) - m[i]);
                store(x + i*ld + j, e);
                sum[i] += e;
            }
        }
    }
    for (int i = 0; i < M; ++i) {
        l[i] = sum_of(sum[i]);
    }
}

// sums += column sums of x/l, where row i counts in the first counted[i] columns
template <int M>
void add_column_sums(const float * x, int64_t ld, int64_t n, const float * l, const int64_t * counted, float * sums) {
    float   f[M];
    int64_t n_all  = n; // columns in which every row counts
    int64_t n_some = 0; // columns in which any does
    for (int i = 0; i < M; ++i) {
        f[i]   = 1.0f/l[i];
        n_all  = min_of(n_all,  counted[i]);
        n_some = max_of(n_some, min_of(n, counted[i]));
    }

    int64_t j = 0;
    const auto add = [&](const auto & counts) {
        vec_f sum = {};
        for (int i = 0; i < M; ++i) {
            sum += counts(load(x + i*ld + j), i)*f[i];
        }
        store(sums + j, load(sums + j) + sum);
    };
    for (; j + VL <= n_all; j += VL) {
        add([](vec_f e, int) { return e; });
    }
    for (; j < n_some; j += VL) {
        add([&](vec_f e, int i) { return first_lanes(e, counted[i] - j); });
    }
}

// f(number of rows, first row, keys that some row sees) for blocks of up to MR rows
template <typename F>
void for_blocks(int n_rows, const int64_t * visible, const F & f) {
    for (int r = 0; r < n_rows; r += MR) {
        const int m = min_of(MR, n_rows - r);
        with_constant<MR>(m, [&](auto c) { f(c, r, visible[r + m - 1]); });
    }
}

// logits = q*k
void multiply_k(const h2o_attn_tile & t, const int64_t * visible, const void * packed, float * logits) {
    const float * k = (const float *) packed;

    const int64_t d_k_pad = h2o_attn_pad(t.d_k);

    for (int64_t p = 0; p < visible[t.n_rows - 1]; p += NR) {
        for_blocks(t.n_rows, visible, [&](auto c, int r, int64_t n) {
            if (p < n) {
                multiply<decltype(c)::value>(t.q + r*t.d_k, t.d_k, k + p*d_k_pad, t.d_k, logits + r*t.ld + p, t.ld, false);
            }
        });
    }
}

// o = logits*v, added to o if add
void multiply_v(const h2o_attn_tile & t, const int64_t * visible, const float * logits, const void * packed, int64_t n_k, bool add) {
    const float * v = (const float *) packed;

    const int64_t d_v_pad = h2o_attn_pad(t.d_v);

    for (int64_t key = 0; key < visible[t.n_rows - 1]; key += KEY_BLOCK) {
        for (int64_t p = 0; p < t.d_v; p += NR) {
            for_blocks(t.n_rows, visible, [&](auto c, int r, int64_t n) {
                if (key < n) {
                    multiply<decltype(c)::value>(logits + r*t.ld + key, t.ld, v + p*n_k + key*NR, min_of(n - key, KEY_BLOCK),
                            t.o + r*d_v_pad + p, d_v_pad, add || key > 0);
                }
            });
        }
    }
}

void tile(const h2o_attn_tile & t) {
    const int64_t d_v_pad = h2o_attn_pad(t.d_v);

    multiply_k(t, t.visible, t.k, t.logits);
    multiply_k(t, t.visible2, t.k2, t.logits + t.n_k);

    for_blocks(t.n_rows, t.visible, [&](auto c, int r, int64_t n) {
        constexpr int M = decltype(c)::value;
        float * x = t.logits + r*t.ld;
        n = (n + VL - 1)/VL*VL;

        const int64_t n2 = (t.visible2[r + M - 1] + VL - 1)/VL*VL;

        const columns parts[] = { { 0, n, t.visible + r }, { t.n_k, n2, t.visible2 + r } };
        mask_and_max<M>(x, t.ld, parts, t.m + r);
        exp_rows<M>(x, t.ld, parts, t.m + r, t.l + r);
        if (t.sums) {
            add_column_sums<M>(x, t.ld, n, t.l + r, t.counted + r, t.sums);
        }
    });

    multiply_v(t, t.visible, t.logits, t.v, t.n_k, false);
    multiply_v(t, t.visible2, t.logits + t.n_k, t.v2, t.n_k2, true);

    for (int r = 0; r < t.n_rows; ++r) {
        const float f = 1.0f/t.l[r];
        for (int64_t i = 0; i < t.d_v; ++i) {
            t.o[r*d_v_pad + i] *= f;
        }
    }
}

const h2o_attn_kernel kernel = { NAME, TILE_ROWS, true, pack_k, pack_v, tile };

} // namespace

const h2o_attn_kernel * const KERNEL = &kernel;
