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

    __device__ __forceinline__ h2o_cuda_key key(int i) const {
        if (i >= n) {
            return { -1, INT_MAX };
        }
        return { rows ? rows[i] : i, first ? first[i] : 0 };
    }
};

// A warp calls them. end_query: the block's queries come before it
static __device__ __forceinline__ h2o_cuda_list h2o_head_keys(const h2o_cuda_attn & a, int h, int end_query) {
    const auto is_seen = [&](int first) { return first < end_query; };

    return { a.rows_of(h), a.first, a.first ? h2o_count_before(a.first, a.n_k, is_seen) : a.n_k };
}

static __device__ __forceinline__ h2o_cuda_list h2o_list_of(const h2o_cuda_attn & a, int tile, int h) {
    const auto is_row = [](int row) { return row >= 0; };

    h2o_cuda_list res = {};
    if (a.extra.rows) {
        res.rows = a.extra.rows_of(tile, h);
        res.n    = h2o_count_before(res.rows, a.extra.n_rows, is_row);
    }
    return res;
}
