#pragma once

// Which keys a tile has, and which queries see them.

#include "ggml/attention/cuda/args.cuh"

// In shared memory: row numbers, negative for no row, and the first query that sees each.
struct h2o_cuda_keys {
    int * number;
    int * first;

    // -1: no query
    __device__ __forceinline__ bool sees(int query, int key) const { return first[key] <= query; }
};

// A head's keys, or a list of extra keys.
struct h2o_cuda_list {
    const int32_t * rows;  // NULL: consecutive rows
    const int32_t * first; // NULL: all queries see a key
    int             n;
    bool            excludes_head_keys;
};

static __device__ __forceinline__ h2o_cuda_list h2o_head_keys(const h2o_cuda_attn & a, const int32_t * rows) {
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

// whether a row of a list is among the head's keys
static __device__ __forceinline__ bool h2o_is_head_key(const h2o_cuda_attn & a, const int32_t * head_rows, int h,
        int row) {
    if (a.source_keys) {
        return a.source_keys[(int64_t) h*a.n_source_words + row/32] >> row%32 & 1;
    }
    if (!head_rows) {
        return row < a.n_k;
    }
    const int n = h2o_count_up_to(head_rows, a.n_k, row);
    return n > 0 && head_rows[n - 1] == row;
}

// n keys of a list from the key-th on. Returns whether a query before end_query sees one that the thread set.
//   head_rows: rows of the head's keys
static __device__ __forceinline__ bool h2o_set_keys(const h2o_cuda_attn & a, const h2o_cuda_keys & keys,
        const h2o_cuda_list & list,
        const int32_t * head_rows, int h, int key, int n, int end_query) {
    bool any = false;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const int j     = key + i;
        const int first = j >= list.n ? INT_MAX : list.first ? max(list.first[j], 0) : 0;

        int row = -1;
        if (first < end_query) { // else it may be any number
            row = list.rows ? list.rows[j] : j;
            if (list.excludes_head_keys && row >= 0 && h2o_is_head_key(a, head_rows, h, row)) {
                row = -1;
            }
        }
        keys.number[i] = row;
        keys.first [i] = row >= 0 ? first : INT_MAX;
        any = any || row >= 0;
    }
    return any;
}
