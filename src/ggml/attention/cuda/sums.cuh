#pragma once

// Weights of the head's keys, summed over unit_rows rows: all of them, or a query's. This is a second pass over the
// logits, by keys, when the softmax is known: each block has all rows of its columns and adds them up in order. Atomics
// in the first pass would need final weights, and would add them up in another order each time.

#include "ggml/attention/cuda/keys.cuh"
#include "ggml/attention/cuda/product.cuh"

// blockIdx.x: tile of keys, y: KV head and block of queries, z: unit
template <typename T, int D, int N_WARPS>
static __global__ void __launch_bounds__(N_WARPS*WARP_SIZE, 2) h2o_attn_sums(const h2o_cuda_attn a, int unit_rows) {
    using sizes = h2o_tile_sizes<T, D>;

    constexpr int n_keys = sizes::n_keys;
    constexpr int n_rows = N_WARPS*H2O_ATTN_WARP_ROWS;

    H2O_DYNAMIC_SHARED(memory);
    T * q = (T *) memory;
    T * k = (T *) (memory + sizes::q_size(N_WARPS));

    __shared__ int   numbers[2][n_keys];
    __shared__ float factors[n_rows][2];
    __shared__ float sums_of_warps[N_WARPS][n_keys];

    const h2o_cuda_keys keys = { numbers[0], numbers[1] };

    const int lane  = threadIdx.x%WARP_SIZE;
    const int warp  = threadIdx.x/WARP_SIZE;
    const int key   = blockIdx.x*n_keys;
    const int h     = blockIdx.y%a.n_head_kv;
    const int block = blockIdx.y/a.n_head_kv;
    const int start = blockIdx.z*unit_rows;
    const int end   = start + unit_rows;

    const int32_t * rows = a.rows_of(h, block);
    h2o_set_keys(a, keys, h2o_head_keys(a, rows), rows, h, key, n_keys, a.n_q);
    __syncthreads();
    const bool by_hand = __syncthreads_or(!h2o_load_tile<T, D>(a.k, keys.number, h, k, 0, a.k.d));

    float sums[n_keys/8][2];
#pragma unroll
    for (int n = 0; n < n_keys/8; ++n) {
        sums[n][0] = sums[n][1] = 0.0f;
    }

    // rows before see none of these keys
    const int n_hidden = a.first ? max(min(a.first[key], a.n_q)*a.group - start, 0) : 0;

    for (int row = start + n_hidden/n_rows*n_rows; row < end; row += n_rows) {
        h2o_load_queries<T, D>(a, h, block, row, end, q, &factors[0][0]);
        __syncthreads();

        float s[n_keys/8][4];
        h2o_logits<T, D>(s, q, k, a.k.d, by_hand);

#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int i = warp*H2O_ATTN_WARP_ROWS + lane/4 + r*8;
            if (row + i >= end) {
                continue;
            }
            const int     query = (row + i)/a.group;
            const int     limit = a.limits ? a.limits[(int64_t) block*a.n_q + query] : INT_MAX;
            const int64_t state = a.state_of(row + i, h, block);
            const float   m     = a.m[state];
            const float   f     = m == -INFINITY ? 0.0f : 1.0f/a.l[state];
#pragma unroll
            for (int n = 0; n < n_keys/8; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int j = n*8 + lane%4*2 + e;
                    if (keys.sees(query, j) && keys.number[j] <= limit && m != -INFINITY) {
                        sums[n][e] += expf(h2o_cap(s[n][2*r + e]*factors[i][0]*factors[i][1], a.softcap) - m)*f;
                    }
                }
            }
        }
        __syncthreads(); // q and the factors were read
    }

#pragma unroll
    for (int n = 0; n < n_keys/8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            float x = sums[n][e];
            x += __shfl_xor_sync(0xffffffff, x, 4,  WARP_SIZE);
            x += __shfl_xor_sync(0xffffffff, x, 8,  WARP_SIZE);
            x += __shfl_xor_sync(0xffffffff, x, 16, WARP_SIZE);
            if (lane < 4) {
                sums_of_warps[warp][n*8 + lane*2 + e] = x;
            }
        }
    }
    __syncthreads();

    const int64_t each = gridDim.z > 1 ? (int) blockIdx.z : block; // query, or block
    for (int j = threadIdx.x; j < n_keys && key + j < a.n_k; j += blockDim.x) {
        float x = 0.0f;
        for (int w = 0; w < N_WARPS; ++w) {
            x += sums_of_warps[w][j];
        }
        a.sums[(each*a.n_head_kv + h)*a.n_k + key + j] = x;
    }
}
