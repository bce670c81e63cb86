#pragma once

// Which keys a tile has, and which queries see them.

#include "ggml/attention/cuda/args.cuh"

// In shared memory: row numbers, negative where nothing is to be read, and the first query that sees each.
struct h2o_cuda_keys {
    int * number;
    int * first;

    // -1: no query
    __device__ __forceinline__ bool sees(int query, int key) const { return first[key] <= query; }
};

// A head's own keys, or a list of further ones.
struct h2o_cuda_list {
    const int32_t * rows;  // NULL: they follow one another
    const int32_t * first; // NULL: all queries see a key
    int             n;
    bool            leaves_out_own;
};

static __device__ __forceinline__ h2o_cuda_list h2o_own_keys(const h2o_cuda_attn & a, const int32_t * rows) {
    return { rows, a.first, a.n_k, false };
}

static __device__ __forceinline__ h2o_cuda_list h2o_list_of(const h2o_cuda_attn & a, int tile, int h) {
    return {
        a.list_rows + ((int64_t) (a.lists_are_of_heads ? h*a.n_tiles : 0) + tile)*a.n_list_rows,
        a.list_first ? a.list_first + (int64_t) tile*a.n_list_rows : nullptr,
        a.n_list_rows,
        a.list_first != nullptr,
    };
}

// whether a head has a further row among its own keys
static __device__ __forceinline__ bool h2o_is_own(const h2o_cuda_attn & a, const int32_t * own, int h, int row) {
    if (a.source_own) {
        return a.source_own[(int64_t) h*a.n_source_own + row/32] >> row%32 & 1;
    }
    if (!own) {
        return row < a.n_k;
    }
    const int n = h2o_count_up_to(own, a.n_k, row);
    return n > 0 && own[n - 1] == row;
}

// n keys of a list from the key-th on. Returns whether a query before end_query sees one that the thread set.
//   own: rows of the head's own keys
static __device__ __forceinline__ bool h2o_set_keys(const h2o_cuda_attn & a, const h2o_cuda_keys & keys, const h2o_cuda_list & list,
        const int32_t * own, int h, int key, int n, int end_query) {
    bool any = false;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const int j     = key + i;
        const int first = j >= list.n ? INT_MAX : list.first ? max(list.first[j], 0) : 0;

        int row = -1;
        if (first < end_query) { // else it may be anything
            row = list.rows ? list.rows[j] : j;
            if (list.leaves_out_own && row >= 0 && h2o_is_own(a, own, h, row)) {
                row = -1;
            }
        }
        keys.number[i] = row;
        keys.first [i] = row >= 0 ? first : INT_MAX;
        any = any || row >= 0;
    }
    return any;
}
