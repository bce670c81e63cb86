#pragma once

// q in F16, each row scaled by a power of two, so that its largest number is near 2^8.

#include "ggml/attention/cuda/args.cuh"
#include "ggml/cuda/mma.cuh"

constexpr int H2O_ATTN_QUERY_WARPS = 4;

// blockIdx: rows, KV head; a warp has a row
static __global__ void __launch_bounds__(H2O_ATTN_QUERY_WARPS*WARP_SIZE) h2o_attn_queries(const h2o_cuda_attn a) {
    const int lane = threadIdx.x%WARP_SIZE;
    const int row  = blockIdx.x*H2O_ATTN_QUERY_WARPS + threadIdx.x/WARP_SIZE;
    const int h    = blockIdx.y;
    if (row >= a.n_q*a.group) {
        return;
    }
    const float * src   = a.q_of(row, h);
    const int64_t place = a.place_of(row, h);

    float peak = 0.0f; // of finite numbers
    for (int i = lane; i < a.d_k; i += WARP_SIZE) {
        peak = h2o_is_finite(src[i]) ? fmaxf(peak, fabsf(src[i])) : peak;
    }
#pragma unroll
    for (int offset = WARP_SIZE/2; offset > 0; offset /= 2) {
        peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, offset, WARP_SIZE));
    }
    int exponent = 0;
    frexpf(peak, &exponent);
    const int   shift = min(8 - exponent, 120); // powers of two are finite
    const float up    = ldexpf(1.0f, shift);

    half * dst = a.rounded + place*a.d_q;
    for (int i = lane; i < a.d_q; i += WARP_SIZE) {
        dst[i] = __float2half(i < a.d_k ? src[i]*up : 0.0f);
    }
    if (lane == 0) {
        a.factors[place] = a.scale*ldexpf(1.0f, -shift);
    }
}
