#include "common.h"
#include "ops.h"

#include <algorithm>
#include <cmath>
#include <numeric>

// x if it is the larger one or NaN: unlike fmaxf, NaN is kept
static inline float max_or_nan(float max, float x) {
    return (x > max) | (x != x) ? x : max;
}

template <typename T>
static T max_row(const T * x, int64_t n) {
    using number = type_conversion_table<T>;

    // independent lanes: compiles to SIMD without -ffast-math
    constexpr int n_lanes = 64;

    float lanes[n_lanes];
    std::fill_n(lanes, n_lanes, -INFINITY);

    int64_t i = 0;
    for (; i + n_lanes <= n; i += n_lanes) {
        for (int j = 0; j < n_lanes; ++j) {
            lanes[j] = max_or_nan(lanes[j], number::to_f32(x[i + j]));
        }
    }
    for (int j = 0; i + j < n; ++j) {
        lanes[j] = max_or_nan(lanes[j], number::to_f32(x[i + j]));
    }
    return number::from_f32(std::accumulate(lanes, lanes + n_lanes, -INFINITY, max_or_nan));
}

template <typename T>
static void max_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src = dst->src[0];

    const auto [first, end] = get_thread_range(params, src);

    for (int64_t row = first; row < end; ++row) {
        const int64_t i1 = row%src->ne[1];
        const int64_t i2 = row/src->ne[1]%src->ne[2];
        const int64_t i3 = row/src->ne[1]/src->ne[2];

        const char * x = (const char *) src->data + i1*src->nb[1] + i2*src->nb[2] + i3*src->nb[3];

        ((T *) dst->data)[row] = max_row((const T *) x, src->ne[0]);
    }
}

void ggml_compute_forward_max_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    if (dst->type == GGML_TYPE_F16) {
        max_rows<ggml_fp16_t>(params, dst);
    } else {
        max_rows<float>(params, dst);
    }
}
