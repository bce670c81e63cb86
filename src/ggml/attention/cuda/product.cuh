#pragma once

// Products of a warp's 16 rows. Of their logits and outputs a thread has rows lane/4 and lane/4 + 8, two of every 8
// columns.

#include "ggml/attention/cuda/load.cuh"

// Logits of a tile of keys, not yet scaled.
template <typename T, int D, int N_ROWS>
static __device__ __forceinline__ void h2o_logits(float (& s)[h2o_tile_sizes<T, D>::n_keys/8][4], const T * q,
        const T * k, int d) {
    using sizes = h2o_tile_sizes<T, D>;

    const int lane = threadIdx.x%WARP_SIZE;
    const int warp = threadIdx.x/WARP_SIZE;

#pragma unroll
    for (int n = 0; n < sizes::n_keys/8; ++n) {
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    }

    if constexpr (h2o_number<T>::is_16) {
        const T * q_row = q + (warp*H2O_ATTN_WARP_ROWS + lane%16)*sizes::ld + lane/16*8;
        const T * k_row = k + (lane%8 + lane/16*8)*sizes::ld + lane/8%2*8;

#pragma unroll 8
        for (int i = 0; i < D; i += 16) { // from d on all is 0
            uint32_t x[4];
            h2o_ldmatrix(x, q_row + i);
#pragma unroll
            for (int n = 0; n < sizes::n_keys/8; n += 2) {
                uint32_t b[4];
                h2o_ldmatrix(b, k_row + n*8*sizes::ld + i);
                h2o_number<T>::mma(s[n],     x, b[0], b[1]);
                h2o_number<T>::mma(s[n + 1], x, b[2], b[3]);
            }
        }
    } else {
        const T * q_row = q + (warp*H2O_ATTN_WARP_ROWS + lane/4)*sizes::ld;
        const T * k_row = k + lane%4*2*sizes::ld;

#pragma unroll 1
        for (int i = 0; i < d; ++i) {
            const float x[2] = { (float) q_row[i], (float) q_row[8*sizes::ld + i] };
#pragma unroll
            for (int n = 0; n < sizes::n_keys/8; ++n) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    s[n][j] += x[j/2]*(float) k_row[(n*8 + j%2)*sizes::ld + i];
                }
            }
        }
    }
}

// Adds d numbers of the values of a tile of keys, with these weights.
//   by_hand: only values for which sees(row of the thread, key)
template <typename T, int D, typename F>
static __device__ __forceinline__ void h2o_add_values(float (& o)[h2o_tile_sizes<T, D>::d_out/8][4],
        const float (& s)[h2o_tile_sizes<T, D>::n_keys/8][4], const T * v, int d, bool by_hand, const F & sees) {
    using sizes = h2o_tile_sizes<T, D>;

    const int lane = threadIdx.x%WARP_SIZE;

    if constexpr (h2o_number<T>::is_16) {
        if (!by_hand) {
            const T * v_row = v + lane%16*sizes::ld_v + lane/16*8;
#pragma unroll
            for (int j = 0; j < sizes::n_keys/16; ++j) {
                const float (& x)[4] = s[2*j];
                const float (& y)[4] = s[2*j + 1];

                const uint32_t weights[4] = {
                    h2o_number<T>::pair(x[0], x[1]), h2o_number<T>::pair(x[2], x[3]),
                    h2o_number<T>::pair(y[0], y[1]), h2o_number<T>::pair(y[2], y[3]),
                };
#pragma unroll
                for (int n = 0; n < sizes::d_out/8; n += 2) {
                    uint32_t b[4];
                    h2o_ldmatrix_trans(b, v_row + j*16*sizes::ld_v + n*8);
                    h2o_number<T>::mma(o[n],     weights, b[0], b[1]);
                    h2o_number<T>::mma(o[n + 1], weights, b[2], b[3]);
                }
            }
            return;
        }
    }

#pragma unroll 1
    for (int n = 0; n < sizes::n_keys/8; ++n) {
        float x[4]; // s[n], as registers have no numbers at run time
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[i] = s[0][i];
#pragma unroll
            for (int other = 1; other < sizes::n_keys/8; ++other) {
                x[i] = other == n ? s[other][i] : x[i];
            }
        }
#pragma unroll 1
        for (int j = 0; j < 4; ++j) { // the thread that has the weights
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int key = n*8 + 2*j + e;
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float weight = __shfl_sync(0xffffffff, x[2*r + e], lane/4*4 + j, WARP_SIZE);
                    if (sees(r, key)) {
                        const T * row = v + key*sizes::ld_v + lane%4*2;
#pragma unroll
                        for (int i = 0; i < sizes::d_out/8; ++i) {
                            if (i*8 < d) {
                                o[i][2*r]     += weight*(float) row[i*8];
                                o[i][2*r + 1] += weight*(float) row[i*8 + 1];
                            }
                        }
                    }
                }
            }
        }
    }
}

// The capped logit. Unlike tanhf, which -use_fast_math makes less exact.
static __device__ __forceinline__ float h2o_cap(float x, float softcap) {
    return softcap > 0.0f ? softcap*(1.0f - 2.0f/(1.0f + expf(2.0f*x/softcap))) : x;
}
