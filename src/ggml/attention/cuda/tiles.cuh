#pragma once

// Rows of one KV head and tile of queries, 16 for each warp: attention to the head's keys and the tile's
// list, in one softmax.
// blockIdx.x: tile, rows of it, slice of the output; y: KV head and block of queries; z: part of the keys
// Where heads are large, a block computes all logits, but only a slice of the output.

#include "ggml/attention/cuda/keys.cuh"
#include "ggml/attention/cuda/product.cuh"

template <typename T, int D, int N_WARPS>
static __global__ void __launch_bounds__(N_WARPS*WARP_SIZE, 2) h2o_attn_tiles(const h2o_cuda_attn a) {
    using sizes = h2o_tile_sizes<T, D>;

    constexpr int n_keys = sizes::n_keys;
    constexpr int n_rows = N_WARPS*H2O_ATTN_WARP_ROWS;
    constexpr int d_out  = sizes::d_out;

    H2O_DYNAMIC_SHARED(memory);
    T * q  = (T *) memory;
    T * kv = (T *) (memory + sizes::q_size(N_WARPS)); // K, then V

    __shared__ int   numbers[2][n_keys];
    __shared__ float factors[n_rows][2];

    const h2o_cuda_keys keys = { numbers[0], numbers[1] };

    const int lane = threadIdx.x%WARP_SIZE;
    const int warp = threadIdx.x/WARP_SIZE;

    const int n_slices  = D > d_out ? (a.v.d + d_out - 1)/d_out : 1;
    const int slice     = blockIdx.x%n_slices;
    const int first_out = slice*d_out;
    const int end_out   = min(first_out + d_out, a.v.d);

    // the last queries first, which see most
    const int place = (int) (gridDim.x - 1 - blockIdx.x)/n_slices;
    const int each  = (a.tile_rows() + n_rows - 1)/n_rows; // tile's blocks
    const int tile  = place/each;
    const int start = (int) max((int64_t) tile*a.tile - a.offset, (int64_t) 0)*a.group;
    const int stop  = (int) min((int64_t) (tile + 1)*a.tile - a.offset, (int64_t) a.n_q)*a.group;
    const int row   = start + place%each*n_rows;
    const int end   = min(row + n_rows, stop);
    const int h     = blockIdx.y%a.n_head_kv;
    const int block = blockIdx.y/a.n_head_kv;
    const int part  = blockIdx.z;
    if (row >= stop) {
        return;
    }

    const int32_t * rows = a.rows_of(h, block);

    h2o_load_queries<T, D>(a, h, block, row, end, q, &factors[0][0]);
    __syncthreads();

    // the thread's two rows
    int   query[2];
    float m[2];
    float l[2]; // of the columns that the thread has
    float o[d_out/8][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int i = warp*H2O_ATTN_WARP_ROWS + lane/4 + r*8;
        query[r] = row + i < end ? (row + i)/a.group : -1;
        m    [r] = -INFINITY;
        l    [r] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < d_out/8; ++n) {
        o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
    }

    // to the keys in shared memory
    const auto attend = [&](const h2o_cuda_rows & k, const h2o_cuda_rows & v) {
        bool by_hand = __syncthreads_or(!h2o_load_tile<T, D>(k, keys.number, h, kv, 0, k.d));

        float s[n_keys/8][4];
        h2o_logits<T, D>(s, q, kv, k.d, by_hand);
#pragma unroll
        for (int n = 0; n < n_keys/8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float (& f)[2] = factors[warp*H2O_ATTN_WARP_ROWS + lane/4 + i/2*8];
                const bool is_seen = keys.sees(query[i/2], n*8 + lane%4*2 + i%2);
                s[n][i] = is_seen ? h2o_cap(s[n][i]*f[0]*f[1], a.softcap) : -INFINITY;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float max = m[r];
#pragma unroll
            for (int n = 0; n < n_keys/8; ++n) {
                max = h2o_max_or_nan(h2o_max_or_nan(max, s[n][2*r]), s[n][2*r + 1]);
            }
            max = h2o_max_or_nan(max, __shfl_xor_sync(0xffffffff, max, 1, WARP_SIZE));
            max = h2o_max_or_nan(max, __shfl_xor_sync(0xffffffff, max, 2, WARP_SIZE));

            const bool  is_empty = max == -INFINITY;
            const float f        = is_empty ? 1.0f : expf(m[r] - max);

            m[r]  = max;
            l[r] *= f;
#pragma unroll
            for (int n = 0; n < n_keys/8; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float & x = s[n][2*r + e];
                    x = is_empty ? 0.0f : expf(x - max);
                    l[r] += x;
                }
            }
#pragma unroll
            for (int n = 0; n < d_out/8; ++n) {
                o[n][2*r]     *= f;
                o[n][2*r + 1] *= f;
            }
        }

        __syncthreads(); // K was read
        by_hand = __syncthreads_or(!h2o_load_tile<T, D>(v, keys.number, h, kv, first_out, end_out));
        const auto sees = [&](int r, int key) { return keys.sees(query[r], key); };
        h2o_add_values<T, D>(o, s, kv, end_out - first_out, by_hand, sees);
        __syncthreads(); // V and the keys' numbers were read
    };

    const int           end_query = (end - 1)/a.group + 1;
    const h2o_cuda_list of_head   = h2o_head_keys(a, rows);
    const h2o_cuda_list list      = h2o_list_of(a, tile, h);
    const int           end_key   = min((part + 1)*a.part_keys, a.list_begin + a.n_list_rows);

    for (int key = part*a.part_keys; key < end_key; key += n_keys) {
        const bool is_of_head = key < a.list_begin;
        const bool any        = h2o_set_keys(a, keys, is_of_head ? of_head : list, rows, h,
                is_of_head ? key : key - a.list_begin, n_keys, end_query);
        if (__syncthreads_or(any)) {
            attend(is_of_head ? a.k : a.list_k, is_of_head ? a.v : a.list_v);
        } else if (is_of_head) {
            key = a.list_begin - n_keys; // later queries see the others
        }
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        l[r] += __shfl_xor_sync(0xffffffff, l[r], 1, WARP_SIZE);
        l[r] += __shfl_xor_sync(0xffffffff, l[r], 2, WARP_SIZE);
        if (query[r] < 0) {
            continue;
        }
        const int     i     = row + warp*H2O_ATTN_WARP_ROWS + lane/4 + r*8;
        const int64_t state = a.state_of(i, h, block);

        float   f  = 1.0f;
        float * to = a.o_of(i, h, block);
        if (a.n_parts == 1) {
            const float sink = a.sinks ? a.sinks[h*a.group + i%a.group] : -INFINITY;
            const float max  = h2o_max_or_nan(m[r], sink);
            if (max != -INFINITY) {
                f    = expf(m[r] - max);
                l[r] = l[r]*f + expf(sink - max);
            }
            f = l[r] == 0.0f ? 0.0f : f/l[r];
            if (lane%4 == 0 && slice == 0) {
                a.m[state] = max;
                a.l[state] = l[r];
            }
        } else {
            const int64_t of_part = a.part_state(part, state);
            to = a.part_o + of_part*a.v.d;
            if (lane%4 == 0 && slice == 0) {
                a.part_m[of_part] = m[r];
                a.part_l[of_part] = l[r];
            }
        }
#pragma unroll
        for (int n = 0; n < d_out/8; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int at = first_out + n*8 + lane%4*2 + e;
                if (at < end_out) {
                    to[at] = l[r] == 0.0f ? 0.0f : o[n][2*r + e]*f;
                }
            }
        }
    }
}
