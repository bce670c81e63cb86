#pragma once

// Rows of one KV head and tile of queries, 16 for each warp: attention to the head's keys and the tile's
// list, in one softmax. K and V come in turn while the other is multiplied (Dao, FlashAttention-2, 2023).
// blockIdx.x: slice of the output, KV head; y: tile and rows of it; z: part of the keys
// Where heads are large, a block computes all logits, but only a slice of the output.

#include "ggml/attention/cuda/keys.cuh"
#include "ggml/attention/cuda/product.cuh"

template <int D, int N_WARPS>
static __global__ void __launch_bounds__(N_WARPS*WARP_SIZE, h2o_tile_sizes<D>::min_blocks) h2o_attn_tiles(
        const h2o_cuda_attn a) {
    using sizes = h2o_tile_sizes<D>;

    constexpr int n_keys    = sizes::n_keys;
    constexpr int n_rows    = N_WARPS*H2O_ATTN_WARP_ROWS;
    constexpr int d_out     = sizes::d_out;
    constexpr int n_threads = N_WARPS*WARP_SIZE;
    constexpr int n_own     = (n_keys + n_threads - 1)/n_threads; // keys of a thread

    H2O_DYNAMIC_SHARED(memory);
    half * q = (half *) memory;
    half * k = q + sizes::q_size(N_WARPS);
    half * v = k + n_keys*sizes::ld;

    // of two tiles
    __shared__ int rows_of_keys[2][n_keys];
    __shared__ int firsts[2][n_keys]; // INT_MAX: no query sees the key

    const int lane = threadIdx.x%WARP_SIZE;
    const int warp = threadIdx.x/WARP_SIZE;

    const int n_slices  = D > d_out ? (a.d_v + d_out - 1)/d_out : 1;
    const int slice     = blockIdx.x%n_slices;
    const int h         = blockIdx.x/n_slices;
    const int first_out = slice*d_out;
    const int end_out   = min(first_out + d_out, a.d_v);

    // the last queries first, which see most
    const int place = (int) (gridDim.y - 1 - blockIdx.y);
    const int each  = (a.tile_rows() + n_rows - 1)/n_rows; // tile's blocks
    const int tile  = place/each;
    const int start = a.extra.start(tile)*a.group;
    const int stop  = a.extra.end(tile, a.n_q)*a.group;
    const int row   = start + place%each*n_rows;
    const int end   = min(row + n_rows, stop);
    const int part  = blockIdx.z;
    if (row >= stop) {
        return;
    }

    h2o_load_queries<D, n_rows>(a, h, row, end, q);

    const int           end_query = (end - 1)/a.group + 1;
    const h2o_cuda_list of_head   = h2o_head_keys(a, h, end_query);
    const h2o_cuda_list list      = h2o_list_of(a, tile, h);

    // tiles of keys: of the head, then of the list
    const int begin_key  = part*a.part_keys;
    const int end_key    = begin_key + a.part_keys;
    const int begin_list = max(begin_key - a.list_begin, 0);
    const int n_head     = max(min(end_key, of_head.n) - begin_key + n_keys - 1, 0)/n_keys;
    const int n_list     = max(min(end_key - a.list_begin, list.n) - begin_list + n_keys - 1, 0)/n_keys;

    h2o_cuda_key next[n_own];
    const auto find_keys = [&](int t) {
#pragma unroll
        for (int i = 0; i < n_own; ++i) {
            const int at = threadIdx.x + i*n_threads;
            next[i] = at >= n_keys || t >= n_head + n_list ? h2o_cuda_key { -1, INT_MAX } :
                    t < n_head ? of_head.key(begin_key + t*n_keys + at) :
                    list.key(begin_list + (t - n_head)*n_keys + at);
        }
    };
    // returns whether some row of the block does not see a key that the thread set
    const auto set_keys = [&](int t) {
        bool is_hidden = false;
#pragma unroll
        for (int i = 0; i < n_own; ++i) {
            const int at = threadIdx.x + i*n_threads;
            if (at < n_keys) {
                const h2o_cuda_key key = next[i];
                rows_of_keys[t%2][at] = key.row;
                firsts      [t%2][at] = key.first;
                is_hidden = is_hidden || key.first > row/a.group;
            }
        }
        return is_hidden;
    };
    const auto load_k = [&](int t) {
        h2o_load_tile<D, n_keys, n_threads>(t < n_head ? a.k : a.list_k, rows_of_keys[t%2], h, k, 0, a.d_k);
    };

    // the thread's two rows
    int   query[2];
    float factor[2];
    float m[2];
    float l[2]; // of the columns that the thread has
    float o[d_out/8][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int i = row + warp*H2O_ATTN_WARP_ROWS + lane/4 + r*8;
        query [r] = i < end ? i/a.group : -1;
        factor[r] = i < end ? a.factors[a.place_of(i, h)] : 0.0f;
        m     [r] = -INFINITY;
        l     [r] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < d_out/8; ++n) {
        o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
    }

    find_keys(0);
    bool is_masked = __syncthreads_or(set_keys(0));
    if (n_head + n_list > 0) {
        load_k(0);
    }
    for (int t = 0; t < n_head + n_list; ++t) {
        find_keys(t + 1);
        h2o_wait_for_copies();
        __syncthreads(); // K is there, V was read
        h2o_load_tile<d_out, n_keys, n_threads>(t < n_head ? a.v : a.list_v, rows_of_keys[t%2], h, v, first_out,
                end_out);

        float s[n_keys/8][4];
        h2o_logits<D>(s, q, k);

        const bool is_hidden = set_keys(t + 1);
        const auto sees      = [&](int r, int key) { return firsts[t%2][key] <= query[r]; };
        const auto change    = [&](const auto & f) { // each logit
#pragma unroll
            for (int n = 0; n < n_keys/8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    s[n][i] = f(s[n][i], i/2, n*8 + lane%4*2 + i%2);
                }
            }
        };
        change([&](float x, int r, int) { return x*factor[r]; });
        if (a.softcap > 0.0f) {
            change([&](float x, int, int) { return h2o_cap(x, a.softcap); });
        }
        if (is_masked) {
            change([&](float x, int r, int key) { return sees(r, key) ? x : -INFINITY; });
        }
        float f[2]; // what l and o so far are multiplied by
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float max = m[r];
#pragma unroll
            for (int n = 0; n < n_keys/8; ++n) {
                max = fmaxf(fmaxf(max, s[n][2*r]), s[n][2*r + 1]); // NaN comes back as weight
            }
            max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 1, WARP_SIZE));
            max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 2, WARP_SIZE));

            const float shift = max == -INFINITY ? 0.0f : max;

            f[r]  = expf(m[r] - shift);
            m[r]  = max;
            l[r] *= f[r];
#pragma unroll
            for (int n = 0; n < n_keys/8; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float & x = s[n][2*r + e];
                    x = expf(x - shift);
                    l[r] += x;
                }
            }
        }
        if (__ballot_sync(0xffffffff, f[0] != 1.0f || f[1] != 1.0f)) { // seldom, once the largest logits were seen
#pragma unroll
            for (int n = 0; n < d_out/8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    o[n][i] *= f[i/2];
                }
            }
        }

        h2o_wait_for_copies();
        const bool is_next_masked = __syncthreads_or(is_hidden); // V is there, K was read
        if (t + 1 < n_head + n_list) {
            load_k(t + 1);
        }
        h2o_add_values<D>(o, s, v);
        is_masked = is_next_masked;
    }
    h2o_wait_for_copies(); // of q, without keys

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        l[r] += __shfl_xor_sync(0xffffffff, l[r], 1, WARP_SIZE);
        l[r] += __shfl_xor_sync(0xffffffff, l[r], 2, WARP_SIZE);
        m[r]  = isnan(l[r]) && m[r] < INFINITY ? l[r] : m[r];
        if (query[r] < 0) {
            continue;
        }
        const int     i     = row + warp*H2O_ATTN_WARP_ROWS + lane/4 + r*8;
        const int64_t state = a.state_index(i, h);

        float   f  = 1.0f;
        float * to = a.o_of(i, h);
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
            to = a.part_o + of_part*a.d_v;
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
