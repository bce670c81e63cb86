#pragma once

#include "ggml/attention/attention.h"
#include "ggml/work.h"

#include <algorithm>

// Rows of the cache, by key.
struct h2o_attn_rows {
    const int32_t * list; // NULL: they follow one another
    int64_t         start = 0;

    int32_t operator[](int64_t key) const { return list ? list[key] : (int32_t) (start + key); }

    h2o_attn_rows from(int64_t key) const { return { list ? list + key : nullptr, start + key }; }
};

// Further keys: the lists of ggml_h2o_attn_further.
struct h2o_attn_further {
    explicit h2o_attn_further(const ggml_tensor * dst);

    explicit operator bool() const { return n_rows > 0; }

    // where the rows are
    ggml_tensor k = {};
    ggml_tensor v = {};

    int64_t n_rows = 0;
    int64_t n;          // tiles: without lists, all queries are one
    int64_t size;       // queries of a tile
    int64_t offset = 0;
    bool    of_heads = false; // each KV head has its own
    bool    has_source = false;

    bool has_first() const { return first; }

    const int32_t * rows_of(int64_t tile, int64_t h) const { return rows + ((of_heads ? h*n : 0) + tile)*n_rows; }

    // how many of them there are
    int64_t n_rows_of(int64_t tile, int64_t h) const {
        const int32_t * begin = rows_of(tile, h);
        return first ? n_rows : std::partition_point(begin, begin + n_rows, [](int32_t row) { return row >= 0; }) - begin;
    }

    int64_t first_query(int64_t tile, int64_t i) const { return first ? first[tile*n_rows + i] : 0; }

    // a tile's queries
    int64_t start(int64_t tile)              const { return std::max<int64_t>(tile*size - offset, 0); }
    int64_t end  (int64_t tile, int64_t n_q) const { return std::min((tile + 1)*size - offset, n_q); }

    // of a source's row: whether the head has it among its own
    bool source_is_own(int64_t h, int32_t row) const { return own[h*n_own + row/32] >> row%32 & 1; }

private:
    const int32_t  * rows  = nullptr; // [n][n_rows], of heads [n_head_kv][n][n_rows]
    const int32_t  * first = nullptr; // [n][n_rows] or NULL
    const uint32_t * own   = nullptr; // of a source: [n_head_kv][n_own]
    int64_t          n_own = 0;
};

// Some rows of a list, which queries of it see.
struct h2o_attn_further_keys {
    int64_t   n;
    int32_t * rows;
    int32_t * first; // ascending

    void add(int32_t row, int64_t first_query) {
        rows [n] = row;
        first[n] = (int32_t) first_query;
        ++n;
    }

    // the first ones, those that the query sees
    int64_t n_visible(int64_t i) const { return std::upper_bound(first, first + n, i) - first; }
};

// The arguments of ggml_h2o_attn, and where its results go. A KV head's rows are numbered by query, then by head of the group.
struct h2o_attn_args {
    explicit h2o_attn_args(const ggml_tensor * dst);

    const ggml_tensor * q;
    const ggml_tensor * k;
    const ggml_tensor * v;

    const h2o_attn_further further;

    float scale;
    float softcap;
    bool  has_sinks;
    bool  has_sums;
    bool  has_query_sums; // each query's own

    int64_t d_k, d_v, n_q, n_head, n_head_kv, n_block, n_k;
    int64_t group; // query heads of a KV head

    // results
    float * o;
    float * sums;
    float * m;
    float * l;

    // the first keys, those that the row sees
    int64_t n_visible(int64_t row) const { return first ? std::upper_bound(first, first + n_k, row/group) - first : n_k; }

    // the first keys, those whose sums count the row
    int64_t n_counted(int64_t row, int64_t h, int64_t block) const;

    h2o_attn_rows rows_of(int64_t h, int64_t block) const {
        return { rows ? (const int32_t *) ((const char *) rows->data + h*rows->nb[1] + block*rows->nb[2]) : nullptr };
    }

    const float * q_of(int64_t row, int64_t h, int64_t block) const {
        return (const float *) ((const char *) q->data + row/group*q->nb[1] + (h*group + row%group)*q->nb[2] + block*q->nb[3]);
    }

    float sink_of(int64_t row, int64_t h) const { return sinks[h*group + row%group]; }

    void scaled_q(int64_t row, int64_t h, int64_t block, float * dst) const;

    void store(int64_t row, int64_t h, int64_t block, const float * row_o, float row_m, float row_l) const;

private:
    const ggml_tensor * rows;  // or NULL
    const int32_t     * first; // [n_k] or NULL
    const int32_t     * limits; // [n_block][n_q] or NULL
    const float       * sinks; // [n_head] or NULL
};
