// The kernel in float32, with blocks of MR rows times NV vectors of VL floats in registers: these three, and the
// kernel's NAME and variable KERNEL, are defined by the file that includes this.

#include "ggml/attention/kernels/query-keys.h"

namespace {

constexpr int NR        = NV*VL; // columns of a block
constexpr int KEY_BLOCK = 256;   // keys of V times NR stay in the L1 cache
constexpr int TILE_ROWS = 48/MR*MR;

static_assert(H2O_ATTN_PAD % NR == 0 && TILE_ROWS <= H2O_ATTN_MAX_ROWS, "");

// Panels of NR keys: [panel][d][NR]
void pack_k(const float * rows, int64_t d, int64_t key, int64_t, void * k) {
    for (int64_t p = 0; p < H2O_ATTN_KEYS; p += NR) {
        float * panel = (float *) k + (key + p)*h2o_attn_pad(d);

        int64_t i = 0;
        for (; i + VL <= d; i += VL) {
            for (int64_t j = 0; j < NR; j += VL) {
                vec_f block[VL];
                for (int r = 0; r < VL; ++r) {
                    block[r] = load(rows + (p + j + r)*d + i);
                }
                transpose(block);
                for (int r = 0; r < VL; ++r) {
                    store(panel + (i + r)*NR + j, block[r]);
                }
            }
        }
        for (; i < d; ++i) {
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

// c[M][NR] = a[M][n]*b[n][NR], added to c if add; lines, at most n, are asked for
template <int M>
void multiply(const float * a, int64_t lda, const float * b, int64_t n, float * c, int64_t ldc, bool add, const cache_lines & lines) {
    vec_f sum[M][NV] = {};

    const auto add_product = [&](int64_t k) {
        vec_f row[NV];
        for (int j = 0; j < NV; ++j) {
            row[j] = load(b + k*NR + j*VL);
        }
        for (int i = 0; i < M; ++i) {
            for (int j = 0; j < NV; ++j) {
                sum[i][j] += a[i*lda + k]*row[j];
            }
        }
    };

    int64_t k = 0;
    for (int i = 0; i < lines.n; ++i) { // spread over all products: the CPU keeps few pending loads
        __builtin_prefetch(lines.line[i]);
        add_product(k++);
        if (2*lines.n <= n) {
            add_product(k++);
        }
    }
#pragma GCC unroll 4
    for (; k < n; ++k) {
        add_product(k);
    }

    for (int i = 0; i < M; ++i) {
        for (int j = 0; j < NV; ++j) {
            float * dst = c + i*ldc + j*VL;
            store(dst, add ? load(dst) + sum[i][j] : sum[i][j]);
        }
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

// Keys of a tile, the first ones or the further ones.
struct keys {
    const void * k;
    const void * v;
    int64_t      n;
    int64_t      origin;     // column of their logits
    const int64_t * hidden;  // of each row, the first ones, which it does not see, or NULL
    const int64_t * visible; // of each row, the first ones, with those that it sees

    int64_t start(int row) const { return hidden ? hidden[row] : 0; }
};

// f(number of rows, first row) for blocks of up to MR rows
template <typename F>
void for_blocks(int n_rows, const F & f) {
    for (int r = 0; r < n_rows; r += MR) {
        with_constant<MR>(min_of(MR, n_rows - r), [&](auto c) { f(c, r); });
    }
}

// The keys that some row of a block sees, and all between them: f(number of rows, first row, first key, end).
template <typename F>
void for_blocks(int n_rows, const keys & part, const F & f) {
    for_blocks(n_rows, [&](auto c, int r) {
        f(c, r, part.start(r), part.visible[r + decltype(c)::value - 1]);
    });
}

const cache_lines no_lines = {};

// logits = q*k, and those of the queries' own keys, or else n_next of the next keys are asked for
void multiply_k(const h2o_attn_tile & t, const keys & part, query_keys * own, int64_t n_next) {
    const float * k = (const float *) part.k;

    const int64_t d_k_pad = h2o_attn_pad(t.d_k);

    const int64_t first   = part.start(0)/NR*NR;
    const int64_t last    = part.visible[t.n_rows - 1];
    const int64_t n_steps = (last - first + NR - 1)/NR*((t.n_rows + MR - 1)/MR);

    int64_t step = 0;
    int64_t next = 0;
    for (int64_t p = first; p < last; p += NR) {
        for (; next < n_next && next*(last - first) < (p + NR - first)*n_next; ++next) {
            prefetch_row(t.next_k, next);
            prefetch_row(t.next_v, next);
        }
        for_blocks(t.n_rows, part, [&](auto c, int r, int64_t start, int64_t end) {
            if (start < p + NR && p < end) {
                const cache_lines & lines = own ? own->lines_k(step, n_steps, t.d_k) : no_lines;

                float * logits = t.logits + part.origin;
                multiply<decltype(c)::value>(t.q + r*t.d_k, t.d_k, k + p*d_k_pad, t.d_k, logits + r*t.ld + p, t.ld, false, lines);
            }
            ++step;
            if (own) {
                own->multiply_k(step, n_steps);
            }
        });
    }
}

// o = logits*v, added to o if add, and the output of the queries' own keys. The cuts between blocks of keys depend on no row: a row's
// result is its own.
void multiply_v(const h2o_attn_tile & t, const keys & part, query_keys * own, bool add) {
    const float * v = (const float *) part.v;

    const int64_t d_v_pad = h2o_attn_pad(t.d_v);

    const int64_t first   = part.start(0)/KEY_BLOCK;
    const int64_t last    = (part.visible[t.n_rows - 1] + KEY_BLOCK - 1)/KEY_BLOCK;
    const int64_t n_steps = (last - first)*((t.d_v + NR - 1)/NR)*((t.n_rows + MR - 1)/MR);

    int64_t step = 0;
    for (int64_t key = first*KEY_BLOCK; key < last*KEY_BLOCK; key += KEY_BLOCK) {
        for (int64_t p = 0; p < t.d_v; p += NR) {
            for_blocks(t.n_rows, part, [&](auto c, int r, int64_t start, int64_t end) {
                start = max_of(start, key);
                end   = min_of(end, key + KEY_BLOCK);
                if (start < end) {
                    const cache_lines & lines = own ? own->lines_v(step, n_steps, end - start) : no_lines;

                    multiply<decltype(c)::value>(t.logits + r*t.ld + part.origin + start, t.ld, v + p*part.n + start*NR, end - start,
                            t.o + r*d_v_pad + p, d_v_pad, add || key > 0, lines);
                }
                ++step;
                if (own) {
                    own->add_v(step, n_steps);
                }
            });
        }
    }
}

bool tile(const h2o_attn_tile & t) {
    const int64_t d_v_pad = h2o_attn_pad(t.d_v);

    const keys first   = { t.k,  t.v,  t.n_k,  0,     nullptr,   t.visible };
    const keys further = { t.k2, t.v2, t.n_k2, t.n_k, t.hidden2, t.visible2 };

    const bool has_own = t.n_query > 0; // in place of the further ones
    query_keys own(t);

    if (has_own) {
        multiply_k(t, first, &own, 0);
    } else {
        multiply_k(t, first, nullptr, t.n_next);
        multiply_k(t, further, nullptr, 0);
    }

    for_blocks(t.n_rows, [&](auto c, int r) {
        constexpr int M = decltype(c)::value;
        float * x = t.logits + r*t.ld;

        int64_t n2 = 0;
        for (int i = 0; i < M; ++i) {
            n2 = max_of(n2, t.visible2[r + i]);
        }

        const int64_t n      = (t.visible[r + M - 1] + VL - 1)/VL*VL;
        const int64_t start2 = t.hidden2[r]/VL*VL;
        const int64_t end2   = (n2 + VL - 1)/VL*VL;

        const columns parts[] = {
            { 0,     0,      n,    nullptr,       t.visible  + r },
            { t.n_k, start2, end2, t.hidden2 + r, t.visible2 + r },
        };
        mask_and_max<M>(x, t.ld, parts, t.m + r);
        exp_rows<M>(x, t.ld, parts, t.m + r, t.l + r);
    });

    if (has_own) {
        multiply_v(t, first, &own, false);
        if (!own.are_finite()) {
            return false;
        }
    } else {
        multiply_v(t, first, nullptr, false);
        multiply_v(t, further, nullptr, true);
    }

    for (int r = 0; r < t.n_rows; ++r) {
        const float f = 1.0f/t.l[r];
        for (int64_t i = 0; i < t.d_v; ++i) {
            t.o[r*d_v_pad + i] = t.o[r*d_v_pad + i]*f + (has_own ? t.query_o[r*d_v_pad + i] : 0.0f);
        }
    }

    if (t.sums) {
        for_blocks(t.n_rows, [&](auto c, int r) {
            constexpr int M = decltype(c)::value;

            const int64_t n = (t.visible[r + M - 1] + VL - 1)/VL*VL;
            add_column_sums<M>(t.logits + r*t.ld, t.ld, n, t.l + r, t.counted + r, t.sums);
        });
    }

    return true;
}

const h2o_attn_kernel kernel = { NAME, TILE_ROWS, true, pack_k, pack_v, tile, in_place };

} // namespace

const h2o_attn_kernel * const KERNEL = &kernel;
