#pragma once

#include "ggml/attention/cpu/args.h"

#include <algorithm>

// Further rows of a tile of queries, "a lookup" here, as the kernel's tiles are others: the arguments of ggml_h2o_attn. Where each
// query has rows of its own, they are a lookup for it alone.
struct h2o_attn_lookup_args {
    explicit h2o_attn_lookup_args(const ggml_tensor * dst);

    // one of all queries, which has no rows
    static h2o_attn_lookup_args none(const ggml_tensor * dst);

    explicit operator bool() const { return n_rows > 0; }

    const int32_t * rows  = nullptr; // [n][n_rows], if they are of queries [n_head_kv][n][n_rows]
    const int32_t * first = nullptr; // [n][n_rows]; NULL: they are of queries, which see them all
    const int32_t * last  = nullptr; // likewise

    int64_t n_rows = 0;
    int64_t n      = 1;
    int64_t size   = 0;
    int64_t offset = 0;

    // where the rows are
    const ggml_tensor * k() const { return own ? &far_k : near_k; }
    const ggml_tensor * v() const { return own ? &far_v : near_v; }

    bool is_far() const { return own; }

    // of rows that are far: whether the head has it among its own
    bool is_own(int64_t h, int32_t row) const { return own[h*n_own + row/32] >> row%32 & 1; }

    bool are_of_queries() const { return rows && !first; }

    const int32_t * rows_of(int64_t lookup, int64_t h) const { return rows + ((first ? 0 : h*n) + lookup)*n_rows; }

    // of a query, how many there are of a KV head's
    int64_t n_rows_of(int64_t query, int64_t h) const {
        const int32_t * list = rows_of(query, h);
        return std::partition_point(list, list + n_rows, [](int32_t row) { return row >= 0; }) - list;
    }

    // its queries
    int64_t start(int64_t lookup)              const { return std::max<int64_t>(lookup*size - offset, 0); }
    int64_t end  (int64_t lookup, int64_t n_q) const { return std::min((lookup + 1)*size - offset, n_q); }

private:
    h2o_attn_lookup_args() = default;

    const ggml_tensor * near_k = nullptr;
    const ggml_tensor * near_v = nullptr;

    ggml_tensor      far_k = {};
    ggml_tensor      far_v = {};
    const uint32_t * own   = nullptr; // [n_head_kv][n_own] or NULL
    int64_t          n_own = 0;
};

// Those of them that a KV head does not have anyway.
struct h2o_attn_lookup_keys {
    int64_t   n;
    int32_t * rows;
    int32_t * first; // ascending
    int32_t * last;  // ascending

    void add(int32_t row, int32_t first_query, int32_t last_query) {
        rows [n] = row;
        first[n] = first_query;
        last [n] = last_query;
        ++n;
    }

    // the query sees [n_hidden, n_visible)
    int64_t n_visible(int64_t i) const { return std::upper_bound(first, first + n, i) - first; }
    int64_t n_hidden (int64_t i) const { return std::upper_bound(last, last + n_visible(i), i) - last; }
};
