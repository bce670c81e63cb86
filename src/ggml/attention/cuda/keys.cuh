#pragma once

// Which keys a block has, and which queries see them.

#include "ggml/attention/cuda/args.cuh"

// A key: its row, -1 for none, and the first query that sees it.
struct h2o_cuda_key {
    int row;
    int first;
};

// Keys of a head, or of a list of extra keys. The first n are visible to some query of the block.
struct h2o_cuda_list {
    const int32_t * rows;  // NULL: consecutive rows
    const int32_t * first; // NULL: all queries see a key
    int             n;
    bool            excludes_head_keys;

    __device__ __forceinline__ h2o_cuda_key key(int i) const {
        if (i >= n) {
            return { -1, INT_MAX };
        }
        return { rows ? rows[i] : i, first ? first[i] : 0 };
    }
};

// A warp calls them. end_query: the block's queries come before it
static __device__ __forceinline__ h2o_cuda_list h2o_head_keys(const h2o_cuda_attn & a, const int32_t * rows,
        int end_query) {
    const auto is_seen = [&](int first) { return first < end_query; };

    return { rows, a.first, a.first ? h2o_count_before(a.first, a.n_k, is_seen) : a.n_k, false };
}

static __device__ __forceinline__ h2o_cuda_list h2o_list_of(const h2o_cuda_attn & a, int tile, int h, int end_query) {
    const auto is_seen = [&](int first) { return first < end_query; };
    const auto is_row  = [](int row) { return row >= 0; };

    h2o_cuda_list res = {};
    if (a.list_rows) {
        res.rows = a.list_rows + ((int64_t) (a.lists_are_of_heads ? h*a.n_tiles : 0) + tile)*a.n_list_rows;
        if (a.list_first) {
            res.first = a.list_first + (int64_t) tile*a.n_list_rows;
            res.n     = h2o_count_before(res.first, a.n_list_rows, is_seen);
            res.excludes_head_keys = true;
        } else {
            res.n = h2o_count_before(res.rows, a.n_list_rows, is_row);
        }
    }
    return res;
}

// whether a row of a list is among the head's keys
static __device__ __forceinline__ bool h2o_is_head_key(const h2o_cuda_attn & a, const int32_t * head_rows, int h,
        int row) {
    if (a.source_keys) {
        return a.source_keys[(int64_t) h*a.n_source_words + row/32] >> row%32 & 1;
    }
    return head_rows ? h2o_has(head_rows, a.n_k, row) : row < a.n_k;
}
