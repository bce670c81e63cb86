#pragma once

#include "ggml/attention/attention.h"
#include "ggml/work.h"

#include <algorithm>

// Rows of the cache, by key.
struct h2o_attn_rows {
    const int32_t * list; // NULL: consecutive rows
    int64_t         start = 0;

    int32_t operator[](int64_t key) const { return list ? list[key] : (int32_t) (start + key); }

    h2o_attn_rows from(int64_t key) const { return { list ? list + key : nullptr, start + key }; }
};

// The lists of ggml_h2o_attn_extra.
struct h2o_attn_extra {
    explicit h2o_attn_extra(const ggml_tensor * dst);

    explicit operator bool() const { return n_rows > 0; }

    // where the rows are
    ggml_tensor k = {};
    ggml_tensor v = {};

    int64_t n_rows = 0;       // of a list
    int64_t n;                // lists; without any, one tile has all queries
    int64_t size;             // queries of a tile
    int64_t offset = 0;
    bool    of_heads = false; // each KV head has lists of its own

    const int32_t  * rows  = nullptr; // [n][n_rows], of heads [n_head_kv][n][n_rows]
    const int32_t  * first = nullptr; // [n][n_rows] or NULL
    const uint32_t * own   = nullptr; // of a source: [n_head_kv][n_own], which rows a head has among its keys; or NULL
    int64_t          n_own = 0;

    const int32_t * rows_of(int64_t list, int64_t h) const { return rows + ((of_heads ? h*n : 0) + list)*n_rows; }

    int64_t first_query(int64_t list, int64_t i) const { return first ? first[list*n_rows + i] : 0; }

    // how many of a list's rows some query before `end` sees
    int64_t n_seen(int64_t list, int64_t h, int64_t end) const {
        const int32_t * x = first ? first + list*n_rows : rows_of(list, h);
        return std::partition_point(x, x + n_rows, [&](int32_t i) { return first ? i < end : i >= 0; }) - x;
    }

    // a list's queries
    int64_t start(int64_t list)              const { return std::max<int64_t>(list*size - offset, 0); }
    int64_t end  (int64_t list, int64_t n_q) const { return std::min((list + 1)*size - offset, n_q); }
};

// The arguments of ggml_h2o_attn, and where its results go. A KV head's rows are numbered by query, then by head of the
// group.
struct h2o_attn_args {
    explicit h2o_attn_args(const ggml_tensor * dst);

    const ggml_tensor * q;
    const ggml_tensor * k;
    const ggml_tensor * v;

    const h2o_attn_extra extra;

    float scale;
    float softcap;
    bool  has_sinks;
    bool  has_column_sums;
    bool  has_query_sums; // of each query

    int64_t d_k, d_v, n_q, n_head, n_head_kv, n_block, n_k;
    int64_t group; // query heads of a KV head

    // results
    float * o;
    float * sums;
    float * m;
    float * l;

    // The row sees this many keys, the first ones.
    int64_t n_visible(int64_t row) const { return first ? std::upper_bound(first, first + n_k, row/group) - first :
            n_k; }

    // The row counts in the sums of this many keys, the first ones.
    int64_t n_counted(int64_t row, int64_t h, int64_t block) const;

    h2o_attn_rows rows_of(int64_t h, int64_t block) const {
        return { rows ? (const int32_t *) ((const char *) rows->data + h*rows->nb[1] + block*rows->nb[2]) : nullptr };
    }

    // Whether an extra row is among the head's keys. With extra.first, which says when to ask, these ascend.
    bool has_key(int64_t h, int32_t row) const;

    const float * q_of(int64_t row, int64_t h, int64_t block) const {
        const int64_t head = h*group + row%group;
        return (const float *) ((const char *) q->data + row/group*q->nb[1] + head*q->nb[2] + block*q->nb[3]);
    }

    float sink_of(int64_t row, int64_t h) const { return sinks[h*group + row%group]; }

    // where a row's results are
    float * o_of(int64_t row, int64_t h, int64_t block) const {
        return o + ((block*n_q + row/group)*n_head + h*group + row%group)*d_v;
    }
    int64_t state_index(int64_t row, int64_t h, int64_t block) const {
        return (block*n_head + h*group + row%group)*n_q + row/group;
    }

private:
    const ggml_tensor * rows;   // or NULL
    const int32_t     * first;  // [n_k] or NULL
    const int32_t     * limits; // [n_block][n_q] or NULL
    const float       * sinks;  // [n_head] or NULL
};
