#pragma once

// Products of a warp's 16 rows. Of their logits and outputs a thread has rows lane/4 and lane/4 + 8, two of every 8
// columns.

#include "ggml/attention/cuda/load.cuh"

// Logits of a tile of keys, not yet scaled.
template <int D>
static __device__ __forceinline__ void h2o_logits(float (& s)[h2o_tile_sizes<D>::n_keys/8][4], const half * q,
        const half * k) {
    using sizes = h2o_tile_sizes<D>;

    const int lane = threadIdx.x%WARP_SIZE;
    const int warp = threadIdx.x/WARP_SIZE;

#pragma unroll
    for (int n = 0; n < sizes::n_keys/8; ++n) {
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    }

    const half * q_row = q + (warp*H2O_ATTN_WARP_ROWS + lane%16)*sizes::ld + lane/16*8;
    const half * k_row = k + (lane%8 + lane/16*8)*sizes::ld + lane/8%2*8;

#pragma unroll 8
    for (int i = 0; i < D; i += 16) { // from the head's size on all is 0
        uint32_t x[4];
        h2o_ldmatrix(x, q_row + i);
#pragma unroll
        for (int n = 0; n < sizes::n_keys/8; n += 2) {
            uint32_t b[4];
            h2o_ldmatrix(b, k_row + n*8*sizes::ld + i);
            h2o_mma_halves(s[n],     x, b[0], b[1]);
            h2o_mma_halves(s[n + 1], x, b[2], b[3]);
        }
    }
}

static __device__ __forceinline__ uint32_t h2o_pair(float x, float y) {
    const half2 xy = __floats2half2_rn(x, y);
    return *(const uint32_t *) &xy;
}

// Adds the values of a tile of keys, with these weights.
template <int D>
static __device__ __forceinline__ void h2o_add_values(float (& o)[h2o_tile_sizes<D>::d_out/8][4],
        const float (& s)[h2o_tile_sizes<D>::n_keys/8][4], const half * v) {
    using sizes = h2o_tile_sizes<D>;

    const int    lane  = threadIdx.x%WARP_SIZE;
    const half * v_row = v + lane%16*sizes::ld_v + lane/16*8;
#pragma unroll
    for (int j = 0; j < sizes::n_keys/16; ++j) {
        const float (& x)[4] = s[2*j];
        const float (& y)[4] = s[2*j + 1];

        const uint32_t weights[4] = { h2o_pair(x[0], x[1]), h2o_pair(x[2], x[3]), h2o_pair(y[0], y[1]),
            h2o_pair(y[2], y[3]) };
#pragma unroll
        for (int n = 0; n < sizes::d_out/8; n += 2) {
            uint32_t b[4];
            h2o_ldmatrix_trans(b, v_row + j*16*sizes::ld_v + n*8);
            h2o_mma_halves(o[n],     weights, b[0], b[1]);
            h2o_mma_halves(o[n + 1], weights, b[2], b[3]);
        }
    }
}

// The capped logit. Unlike tanhf, which -use_fast_math makes less exact.
static __device__ __forceinline__ float h2o_cap(float x, float softcap) {
    return softcap > 0.0f ? softcap*(1.0f - 2.0f/(1.0f + expf(2.0f*x/softcap))) : x;
}
