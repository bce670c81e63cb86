#pragma once

#include "ggml/attention/args.h"
#include "ggml/cuda/numbers.cuh"

#include <climits>

// K or V: in the cache, or rows brought back.
struct h2o_cuda_rows {
    const char * data;
    int64_t      stride;      // from row to row, in bytes
    int64_t      head_stride;
    int          type;        // ggml_type
    int          d;
    bool         is_aligned;  // 16 bytes can be copied at once

    __device__ __forceinline__ const char * row(int i, int h) const { return data + i*stride + h*head_stride; }
};

struct h2o_cuda_attn : h2o_attn_args<int> {
    explicit h2o_cuda_attn(const ggml_tensor * dst);

    h2o_cuda_rows k, v;
    h2o_cuda_rows list_k, list_v; // of extra keys

    half  * rounded; // q in F16: [n_head_kv][rows][d_q]
    int     d_q;     // d_k, a multiple of 16: then zeros
    float * factors; // [n_head_kv][rows]: of their products

    // The head's keys are numbered from 0 on, a list's from list_begin on. A part of a row's softmax has part_keys of
    // them.
    int list_begin;
    int part_keys;
    int n_parts = 1;

    // sums of several splits of the rows
    int     split_rows;
    int     n_splits = 1;
    float * split_sums; // [n_splits], each as sums

    // with several parts: o, m and l of each, o not yet divided by l
    float * part_o;
    float * part_m;
    float * part_l;

    // index of a row's rounded q
    __device__ __forceinline__ int64_t place_of(int row, int h) const { return (int64_t) h*n_q*group + row; }

    __host__ __device__ __forceinline__ int tile_rows() const { return (extra.tile < n_q ? extra.tile : n_q)*group; }

    __device__ __forceinline__ int64_t part_state(int part, int64_t state) const {
        return (int64_t) part*n_head*n_q + state;
    }
};

// How many of n numbers come before the first for which is_before is false. A warp calls it.
template <typename F>
static __device__ __forceinline__ int h2o_count_before(const int32_t * list, int n, const F & is_before) {
    const int lane = threadIdx.x%WARP_SIZE;

    int low = 0;
    while (n > 0) {
        const int step  = (n + WARP_SIZE - 1)/WARP_SIZE;
        const int last  = min((lane + 1)*step, n) - 1;
        const int count = __popc(__ballot_sync(0xffffffff, is_before(list[low + last])))*step;
        if (count >= n) {
            return low + n;
        }
        low += count;
        n    = min(step, n - count) - 1;
    }
    return low;
}
