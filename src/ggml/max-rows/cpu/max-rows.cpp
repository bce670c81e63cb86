#include "ggml-cpu-impl.h"
#include "ops.h"

#include <algorithm>
#include <cmath>
#include <numeric>

// x if it is the larger one or NaN: unlike fmaxf, NaN is kept
static inline float max_or_nan(float max, float x) {
    return (x > max) | (x != x) ? x : max;
}

static float max_row(const float * x, int64_t n) {
    // independent lanes: compiles to SIMD without -ffast-math
    constexpr int n_lanes = 64;

    float lanes[n_lanes];
    std::fill_n(lanes, n_lanes, -INFINITY);

    int64_t i = 0;
    for (; i + n_lanes <= n; i += n_lanes) {
        for (int j = 0; j < n_lanes; ++j) {
            lanes[j] = max_or_nan(lanes[j], x[i + j]);
        }
    }
    for (; i < n; ++i) {
        lanes[0] = max_or_nan(lanes[0], x[i]);
    }
    return std::accumulate(lanes, lanes + n_lanes, -INFINITY, max_or_nan);
}

void ggml_compute_forward_max_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];

    GGML_TENSOR_UNARY_OP_LOCALS

    // row range for this thread
    const int64_t nr  = ggml_nrows(src0);
    const int64_t dr  = (nr + params->nth - 1)/params->nth;
    const int64_t ir0 = dr*params->ith;
    const int64_t ir1 = std::min(ir0 + dr, nr);

    for (int64_t ir = ir0; ir < ir1; ++ir) {
        const int64_t i3 = ir/(ne02*ne01);
        const int64_t i2 = ir/ne01%ne02;
        const int64_t i1 = ir%ne01;

        *(float *) ((char *) dst->data + i1*nb1 + i2*nb2 + i3*nb3) =
            max_row((const float *) ((const char *) src0->data + i1*nb01 + i2*nb02 + i3*nb03), ne00);
    }
}
