#pragma once

// Which keys a tile has, and which queries see them.

#include "ggml/attention/cuda/args.cuh"

// In shared memory: row numbers, negative where nothing is to be read, and the queries [first, end) that see each.
struct h2o_cuda_keys {
    int * number;
    int * first;
    int * end;

    __device__ __forceinline__ bool sees(int query, int key) const { return first[key] <= query && query < end[key]; }

    __device__ __forceinline__ void set(int key, int row, int first_query, int end_query) const {
        const bool is_seen = first_query < end_query;
        number[key] = is_seen ? row : -1;
        first [key] = is_seen ? first_query : INT_MAX;
        end   [key] = end_query;
    }
};

// Keys of some queries: a head's own, or a list of further ones.
struct h2o_cuda_list {
    const int32_t * rows;  // NULL: they follow one another
    const int32_t * first; // the first query that sees a key, NULL: all do
    const int32_t * last;  // the first that no longer does, NULL: all go on
    int             begin;
    int             end;
    int             first_query;
    int             end_query;
    bool            leaves_out_own;
};

// a part of them
static __device__ __forceinline__ h2o_cuda_list h2o_own_keys(const h2o_cuda_attn & a, const int32_t * rows, int part, int n, int end_query) {
    const int n_seen = a.first ? h2o_count_up_to(a.first, a.n_k, end_query - 1) : a.n_k;

    return { rows, a.first, nullptr, part*n, min((part + 1)*n, n_seen), 0, INT_MAX, false };
}

static __device__ __forceinline__ h2o_cuda_list h2o_list_of(const h2o_cuda_attn & a, int list, int h, int first_query, int end_query) {
    h2o_cuda_list res;
    res.rows  = a.list_rows + ((int64_t) (a.lists_are_of_heads ? h*a.n_lists : 0) + list)*a.n_list_rows;
    res.first = a.list_first ? a.list_first + (int64_t) list*a.n_list_rows : nullptr;
    res.last  = a.list_last  ? a.list_last  + (int64_t) list*a.n_list_rows : nullptr;

    const int64_t start = (int64_t) list*a.list_size - a.list_offset;
    res.first_query    = (int) max(start, (int64_t) first_query);
    res.end_query      = (int) min(start + a.list_size, (int64_t) end_query);
    res.leaves_out_own = res.first != nullptr;

    // all that begin before the queries end; without queries, up to the first -1
    res.begin = 0;
    int low = 0;
    int n   = a.n_list_rows;
    while (low < n) {
        const int j = low + (n - low)/2;
        if (res.first ? res.first[j] < res.end_query : res.rows[j] >= 0) {
            low = j + 1;
        } else {
            n = j;
        }
    }
    res.end = low;
    return res;
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

// n keys of a list from the key-th on. Returns whether some query sees one that the thread set.
//   own: rows of the head's own keys
static __device__ __forceinline__ bool h2o_set_keys(const h2o_cuda_attn & a, const h2o_cuda_keys & keys, const h2o_cuda_list & list,
        const int32_t * own, int h, int key, int n) {
    bool any = false;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const int j = key + i;

        int row   = -1;
        int first = 0;
        int end   = 0;
        if (j < list.end) {
            first = list.first ? max(list.first[j], list.first_query) : list.first_query;
            end   = list.last  ? min(list.last[j],  list.end_query)   : list.end_query;
            if (first < end) { // else it may be anything
                row = list.rows ? list.rows[j] : j;
                if (list.leaves_out_own && h2o_is_own(a, own, h, row)) {
                    end = first;
                }
            }
        }
        keys.set(i, row, first, end);
        any = any || first < end;
    }
    return any;
}
