#pragma once

// Weights of the head's keys, summed over unit_rows rows: all of them, or a query's. This is a second pass over the
// logits, by keys, when the softmax is known: a block has some rows of its columns and adds them up in order, and so
// are the blocks' sums. Atomics in the first pass would need final weights, and would add them up in another order
// each time.

#include "ggml/attention/cuda/keys.cuh"
#include "ggml/attention/cuda/product.cuh"

constexpr int H2O_ATTN_SUM_THREADS = 128;

// blockIdx.x: tile of keys, y: KV head, z: unit and split of its rows
template <int D, int N_WARPS>
static __global__ void __launch_bounds__(N_WARPS*WARP_SIZE, h2o_tile_sizes<D>::min_blocks) h2o_attn_sums(
        const h2o_cuda_attn a, int unit_rows) {
    using sizes = h2o_tile_sizes<D>;

    constexpr int n_keys = sizes::n_keys;
    constexpr int n_rows = N_WARPS*H2O_ATTN_WARP_ROWS;

    H2O_DYNAMIC_SHARED(memory);
    half * k = (half *) memory;
    half * q = k + n_keys*sizes::ld; // of sum_stages

    __shared__ int   rows_of_keys[n_keys];
    __shared__ int   firsts[n_keys];
    __shared__ float sums_of_warps[N_WARPS][n_keys];

    const int lane  = threadIdx.x%WARP_SIZE;
    const int warp  = threadIdx.x/WARP_SIZE;
    const int key   = blockIdx.x*n_keys;
    const int h     = blockIdx.y;
    const int unit  = blockIdx.z/a.n_splits;
    const int split = blockIdx.z%a.n_splits;
    const int start = unit*unit_rows + split*a.split_rows;
    const int end   = min(start + a.split_rows, (unit + 1)*unit_rows);

    const h2o_cuda_list list = { a.rows_of(h), a.first, a.n_k };
    for (int j = threadIdx.x; j < n_keys; j += blockDim.x) {
        const h2o_cuda_key x = list.key(key + j);
        rows_of_keys[j] = x.row;
        firsts      [j] = x.row < 0 ? INT_MAX : x.first;
    }

    float sums[n_keys/8][2]; // of the thread's columns

    // rows before see none of these keys
    const int n_hidden = max(min(a.first ? a.first[key] : 0, a.n_q)*a.group - start, 0);

    int row = start + n_hidden/n_rows*n_rows;
    __syncthreads();
    int first[n_keys/8][2], row_of[n_keys/8][2];
#pragma unroll
    for (int n = 0; n < n_keys/8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            sums  [n][e] = 0.0f;
            first [n][e] = firsts      [n*8 + lane%4*2 + e];
            row_of[n][e] = rows_of_keys[n*8 + lane%4*2 + e];
        }
    }
    if (row < end) {
        h2o_load_tile<D, n_keys, N_WARPS*WARP_SIZE>(a.k, rows_of_keys, h, k, 0, a.d_k);
        h2o_load_queries<D, n_rows>(a, h, row, end, q);
    }
    half * q_row = q;
    for (; row < end; row += n_rows) {
        h2o_wait_for_copies();
        __syncthreads(); // these rows are there, the last ones were read
        half * q_next = sizes::sum_stages == 1 || q_row > q ? q : q + sizes::q_size(N_WARPS);
        if (sizes::sum_stages > 1 && row + n_rows < end) {
            h2o_load_queries<D, n_rows>(a, h, row + n_rows, end, q_next);
        }

        // the thread's two rows; weight: 1/l, 0 where there is nothing to add
        int   query[2], limit[2];
        float factor[2], m[2], weight[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int i = min(row + warp*H2O_ATTN_WARP_ROWS + lane/4 + r*8, end - 1);

            const int64_t state = a.state_index(i, h);
            query [r] = row + warp*H2O_ATTN_WARP_ROWS + lane/4 + r*8 < end ? i/a.group : -1;
            limit [r] = a.limits ? a.limits[i/a.group] : INT_MAX;
            factor[r] = a.factors[a.place_of(i, h)];
            m     [r] = a.m[state];
            weight[r] = m[r] == -INFINITY ? 0.0f : 1.0f/a.l[state];
            query [r] = m[r] == -INFINITY ? -1 : query[r];
        }

        float s[n_keys/8][4];
        h2o_logits<D>(s, q_row, k);

        const auto add = [&](const auto & logit) {
#pragma unroll
            for (int n = 0; n < n_keys/8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int   r = i/2, e = i%2;
                    const float x = expf(logit(s[n][i]*factor[r]) - m[r])*weight[r];
                    sums[n][e] += first[n][e] <= query[r] && row_of[n][e] <= limit[r] ? x : 0.0f;
                }
            }
        };
        if (a.softcap > 0.0f) {
            add([&](float x) { return h2o_cap(x, a.softcap); });
        } else {
            add([&](float x) { return x; });
        }

        if (sizes::sum_stages == 1 && row + n_rows < end) {
            __syncthreads(); // q was read
            h2o_load_queries<D, n_rows>(a, h, row + n_rows, end, q_next);
        }
        q_row = q_next;
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

    const int64_t n_units = gridDim.z/a.n_splits;
    for (int j = threadIdx.x; j < n_keys && key + j < a.n_k; j += blockDim.x) {
        float x = 0.0f;
        for (int w = 0; w < N_WARPS; ++w) {
            x += sums_of_warps[w][j];
        }
        a.split_sums[((split*n_units + unit)*a.n_head_kv + h)*a.n_k + key + j] = x;
    }
}

// Adds up the splits of n sums.
static __global__ void __launch_bounds__(H2O_ATTN_SUM_THREADS) h2o_attn_add_splits(const h2o_cuda_attn a, int64_t n) {
    const int64_t i = (int64_t) blockIdx.x*H2O_ATTN_SUM_THREADS + threadIdx.x;
    if (i < n) {
        float x = 0.0f;
        for (int split = 0; split < a.n_splits; ++split) {
            x += a.split_sums[split*n + i];
        }
        a.sums[i] = x;
    }
}
