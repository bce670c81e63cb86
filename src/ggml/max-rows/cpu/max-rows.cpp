#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ops.h"

#include <algorithm>
#include <cmath>

// x if it is the larger one or NaN: unlike fmaxf, NaN is kept
static inline float max_or_nan(float max, float x) {
    return (x > max) | (x != x) ? x : max;
}

static float max_row(const float * x, int64_t n, float max) {
    // independent lanes: compiles to SIMD without -ffast-math
    constexpr int n_lanes = 64;

    float lanes[n_lanes];
    for (int j = 0; j < n_lanes; ++j) {
        lanes[j] = max;
    }

    int64_t i = 0;
    for (; i + n_lanes <= n; i += n_lanes) {
        for (int j = 0; j < n_lanes; ++j) {
            lanes[j] = max_or_nan(lanes[j], x[i + j]);
        }
    }
    for (; i < n; ++i) {
        max = max_or_nan(max, x[i]);
    }
    for (int j = 0; j < n_lanes; ++j) {
        max = max_or_nan(max, lanes[j]);
    }

    return max;
}

static void max_row(const float * x, int64_t n, float * dst) {
    *dst = max_row(x, n, -INFINITY);
}

static void max_row(const ggml_fp16_t * x, int64_t n, ggml_fp16_t * dst) {
    float buf[256];
    float max = -INFINITY;

    for (int64_t i = 0; i < n; i += 256) {
        const int64_t n_buf = std::min<int64_t>(n - i, 256);
        ggml_cpu_fp16_to_fp32(x + i, buf, n_buf);
        max = max_row(buf, n_buf, max);
    }

    *dst = ggml_fp32_to_fp16(max);
}

template <typename T>
static void max_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];

    GGML_TENSOR_UNARY_OP_LOCALS

    const int64_t nr = ggml_nrows(src0);

    // row range for this thread
    const int64_t dr  = (nr + params->nth - 1)/params->nth;
    const int64_t ir0 = dr*params->ith;
    const int64_t ir1 = std::min(ir0 + dr, nr);

    for (int64_t ir = ir0; ir < ir1; ++ir) {
        const int64_t i3 = ir/(ne02*ne01);
        const int64_t i2 = (ir - i3*ne02*ne01)/ne01;
        const int64_t i1 = (ir - i3*ne02*ne01 - i2*ne01);

        max_row((const T *) ((const char *) src0->data + i1*nb01 + i2*nb02 + i3*nb03), ne00,
                      (T *) (      (char *)  dst->data + i1*nb1  + i2*nb2  + i3*nb3));
    }
}

void ggml_compute_forward_max_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    switch (dst->src[0]->type) {
        case GGML_TYPE_F32:
            {
                max_rows<float>(params, dst);
            } break;
        case GGML_TYPE_F16:
            {
                max_rows<ggml_fp16_t>(params, dst);
            } break;
        default:
            {
                GGML_ABORT("fatal error");
            }
    }
}
