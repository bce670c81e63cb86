#pragma once

// The softmax of a block of rows, with vectors of VL floats.

#include "ggml/attention/kernels/kernel.h"
#include "ggml/simd/vec.h"

namespace {

// Columns of a block's logits, of the head's keys or of extra keys.
struct columns {
    int64_t origin;          // the columns below are counted from here
    int64_t end;             // of whole vectors, with all that some row sees; 0: no columns
    const int64_t * visible; // of each row, the end of the columns that it sees
};

// How weights are stored in place of the logits, N vectors at a time: unchanged.
struct plain_weights {
    static constexpr int N = 1;

    static void put(float * x, const vec_f (& e)[N]) { store(x, e[0]); }
    static void get(const float * x, vec_f (& e)[N]) { e[0] = load(x); }
};

// after Cephes' tanhf
inline vec_f tanh_of(vec_f x) {
    const vec_f a = (vec_f) ((vec_i) x & 0x7fffffff);
    const vec_f e = exp_negative(-2.0f*a);
    const vec_f z = x*x;

    vec_f p = broadcast(-5.70498872745e-3f);
    p = p*z + 2.06390887954e-2f;
    p = p*z - 5.37397155531e-2f;
    p = p*z + 1.33314422036e-1f;
    p = p*z - 3.33332819422e-1f;

    const vec_f large = (vec_f) ((vec_i) ((1.0f - e)/(1.0f + e)) | ((vec_i) x & (int32_t) 0x80000000));

    return a < 0.625f ? x + x*z*p : large;
}

// x = softcap*tanh(x/softcap)
template <int M>
void cap_logits(float * x, int64_t ld, const columns & seen, float softcap) {
    for (int i = 0; i < M; ++i) {
        float * row = x + i*ld + seen.origin;
        for (int64_t j = 0; j < seen.end; j += VL) {
            store(row + j, softcap*tanh_of(load(row + j)/softcap));
        }
    }
}

// Hides what the rows do not see of the vectors in which some row sees something, and finds the largest logit of each
// row, its sink (or NULL) among them.
template <int M, int N>
void mask_and_max(float * x, int64_t ld, const columns (& all)[N], const float * sinks, float * m) {
    vec_f max[M];
    for (int i = 0; i < M; ++i) {
        max[i] = broadcast(sinks ? sinks[i] : -__builtin_inff());
    }

    for (const columns & seen : all) {
        for (int i = 0; i < M && seen.end > 0; ++i) {
            float * row = x + i*ld + seen.origin;
            for (int64_t j = seen.visible[i]; j < seen.end; ++j) {
                row[j] = -__builtin_inff();
            }
        }
        for (int64_t j = 0; j < seen.end; j += VL) {
            for (int i = 0; i < M; ++i) {
                const vec_f v = load(x + i*ld + seen.origin + j);
                max[i] = v > max[i] ? v : max[i];
            }
        }
    }

    for (int i = 0; i < M; ++i) {
        m[i] = max[i][0];
        for (int j = 1; j < VL; ++j) {
            m[i] = max[i][j] > m[i] ? max[i][j] : m[i];
        }
    }
}

// x = exp(x - m), as weights of the kind W; their sums are added to the rows' sums
template <typename W, int M>
void exp_columns(float * x, int64_t ld, const columns & seen, const float * m, vec_f (& sums)[M]) {
    for (int64_t j = 0; j < seen.end; j += W::N*VL) {
        for (int i = 0; i < M; ++i) {
            float * logits = x + i*ld + seen.origin + j;

            vec_f e[W::N];
            for (int v = 0; v < W::N; ++v) {
                e[v] = exp_negative(load(logits + v*VL) - m[i]);
            }
            W::put(logits, e);

            vec_f sum = e[0];
            for (int v = 1; v < W::N; ++v) {
                sum += e[v];
            }
            sums[i] += sum;
        }
    }
}

// Lanes of finite become 0 where numbers are not finite.
inline void check(vec_f x, vec_i & finite) {
    finite &= x - x == 0.0f;
}

inline bool all_lanes(vec_i x) {
    bool res = true;
    for (int j = 0; j < VL; ++j) {
        res &= x[j] != 0;
    }
    return res;
}

// Logits of M rows from the row-th on become weights of the kind W; their m and l are set, with their sinks (or NULL).
template <typename W, int M, int N>
void softmax(const h2o_attn_tile & t, int row, const columns (& all)[N], const float * sinks, vec_i & finite) {
    float * x = t.logits + row*t.ld;
    float * m = t.m + row;

    for (const columns & seen : all) {
        for (int i = 0; i < M; ++i) {
            for (int64_t j = 0; j < seen.end; j += VL) {
                check(load(x + i*t.ld + seen.origin + j), finite);
            }
        }
        if (t.softcap > 0.0f) {
            cap_logits<M>(x, t.ld, seen, t.softcap);
        }
    }
    mask_and_max<M>(x, t.ld, all, sinks, m);

    vec_f sums[M] = {};
    for (const columns & seen : all) {
        exp_columns<W, M>(x, t.ld, seen, m, sums);
    }
    for (int i = 0; i < M; ++i) {
        t.l[row + i] = sum_of(sums[i]) + (sinks ? exp_negative(broadcast(sinks[i] - m[i]))[0] : 0.0f);
    }
}

// sums += column sums of weights/l, where row i counts in the first counted[i] of n columns
template <typename W, int M>
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
        vec_f sum[W::N] = {};
        for (int i = 0; i < M; ++i) {
            vec_f e[W::N];
            W::get(x + i*ld + j, e);
            for (int v = 0; v < W::N; ++v) {
                sum[v] += counts(e[v], i, j + v*VL)*f[i];
            }
        }
        for (int v = 0; v < W::N; ++v) {
            store(sums + j + v*VL, load(sums + j + v*VL) + sum[v]);
        }
    };
    for (; j + W::N*VL <= n_all; j += W::N*VL) {
        add([](vec_f e, int, int64_t) { return e; });
    }
    for (; j < n_some; j += W::N*VL) {
        add([&](vec_f e, int i, int64_t column) { return first_lanes(e, counted[i] - column); });
    }
}

} // namespace
