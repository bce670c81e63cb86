#pragma once

// The softmax of a block of rows, with vectors of VL floats.

#include "ggml/attention/kernels/kernel.h"
#include "ggml/simd/vec.h"

namespace {

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
void cap_logits(float * x, int64_t ld, int64_t end, float softcap) {
    for (int i = 0; i < M; ++i) {
        float * row = x + i*ld;
        for (int64_t j = 0; j < end; j += VL) {
            store(row + j, softcap*tanh_of(load(row + j)/softcap));
        }
    }
}

// m = the largest of m and the row's logits that are not NaN. What a row does not see of the vectors up to the end is hidden.
template <int M>
void mask_and_max(float * x, int64_t ld, int64_t end, const int64_t * visible, float * m) {
    vec_f most[M];
    for (int i = 0; i < M; ++i) {
        most[i] = broadcast(m[i]);
    }

    int64_t j = 0;
    for (; j + VL <= visible[0]; j += VL) {
        for (int i = 0; i < M; ++i) {
            most[i] = max(load(x + i*ld + j), most[i]);
        }
    }
    for (; j < end; j += VL) {
        for (int i = 0; i < M; ++i) {
            const vec_f v = lanes_below(visible[i] - j) ? load(x + i*ld + j) : broadcast(-__builtin_inff());
            store(x + i*ld + j, v);
            most[i] = max(v, most[i]);
        }
    }

    for (int i = 0; i < M; ++i) {
        m[i] = fold(most[i], max)[0];
    }
}

// All weights are 0 where a row has seen nothing but -inf.
inline float finite_or_0(float m) {
    return m == -__builtin_inff() ? 0.0f : m;
}

// Logits of M rows from the row-th on become weights of the kind W, exp(logit - m). A row's m becomes their largest
// one if it was less.
template <typename W, int M>
void softmax(const h2o_attn_tile & t, int row, int64_t end, float * sums) {
    float * x = t.logits + row*t.ld;
    float * m = t.m + row;

    if (t.softcap > 0.0f) {
        cap_logits<M>(x, t.ld, end, t.softcap);
    }
    mask_and_max<M>(x, t.ld, end, t.visible + row, m);

    float from[M];
    vec_f of_lanes[M] = {};
    for (int i = 0; i < M; ++i) {
        from[i] = finite_or_0(m[i]);
    }
    for (int64_t j = 0; j < end; j += W::N*VL) {
        for (int i = 0; i < M; ++i) {
            float * logits = x + i*t.ld + j;

            vec_f e[W::N];
            for (int v = 0; v < W::N; ++v) {
                e[v] = exp_negative(load(logits + v*VL) - from[i]);
                of_lanes[i] += e[v];
            }
            W::put(logits, e);
        }
    }
    for (int i = 0; i < M; ++i) {
        sums[i] = fold(of_lanes[i], [](vec_f a, vec_f b) { return a + b; })[0];
    }
}

// sums += column sums of f*weights, where row i counts in the first counted[i] of n columns
template <typename W, int M>
void add_column_sums(const float * x, int64_t ld, int64_t n, const float * f, const int64_t * counted, float * sums) {
    int64_t end = 0; // of the columns in which any row counts
    for (int i = 0; i < M; ++i) {
        end = max_of(end, min_of(n, counted[i]));
    }
    for (int64_t j = 0; j < end; j += W::N*VL) {
        vec_f sum[W::N] = {};
        for (int i = 0; i < M; ++i) {
            vec_f e[W::N];
            W::get(x + i*ld + j, e);
            for (int v = 0; v < W::N; ++v) {
                sum[v] += first_lanes(e[v], counted[i] - j - v*VL)*f[i];
            }
        }
        for (int v = 0; v < W::N; ++v) {
            store(sums + j + v*VL, load(sums + j + v*VL) + sum[v]);
        }
    }
}

} // namespace
