#pragma once

// Numbers that may be infinite or NaN.

#include "ggml/cuda/launch.cuh"

// x if it is the larger one or NaN: unlike fmaxf, NaN is kept
static __device__ __forceinline__ float h2o_max_or_nan(float max, float x) {
    return x > max || isnan(x) ? x : max;
}

static __device__ __forceinline__ bool h2o_is_finite(float x) { return x*0.0f == 0.0f; }
