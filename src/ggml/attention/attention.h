#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// Which sums of the softmax weights of a head's keys are made, over the query heads of each KV head.
enum ggml_h2o_attn_sums {
    GGML_H2O_ATTN_NO_SUMS     = 0,
    GGML_H2O_ATTN_COLUMN_SUMS = 1, // over the queries that count
    GGML_H2O_ATTN_QUERY_SUMS  = 2, // for each query, 0 where it does not count
};

// Extra keys: a list of rows for each KV head and tile of queries. Query i is in tile (i + offset)/tile;
// n_tiles = ceil((n_q + offset)/tile).
//
//   rows      I32 [n, n_tiles, n_head_kv], contiguous                  NULL: no extra keys
//   source    I8  [ggml_h2o_attn_source_offsets().size], contiguous    NULL: rows are rows of k and v
//
// Queries see all of their list up to the first -1. Nobody checks that rows differ from the head's: the keys that a
// query sees are distinct. A source has lists of its own, of the same shape: numbers of its rows.
struct ggml_h2o_attn_extra {
    struct ggml_tensor * rows;
    int                  tile;     // queries; the first tile has offset fewer, the last may have fewer
    int                  offset;   // in [0, tile)
    struct ggml_tensor * source;   // rows brought back from where they were stored
    int                  n_source; // at least 1
};

// A head's keys, for all queries: memory keys and chunk keys.
//
//   rows      I32 [n_k, n_head_kv], nb[0] == 4     the keys: rows of k and v, in any order; NULL: 0 to n_k - 1
//   first     I32 [n_k], contiguous, ascending     the first query that sees a key; NULL: 0
//   limits    I32 [n_q], contiguous                query i counts in sums of rows to limits[i]; NULL: of all
//   sinks     F32 [n_head], contiguous             a logit of each query's softmax without a value; NULL: none
//
// With limits, each head's rows must ascend. Zeros are: no extra keys, no limits, no sinks, no softcap, no sums.
struct ggml_h2o_attn_params {
    struct ggml_tensor         * rows;
    int64_t                      n_k;     // without rows
    struct ggml_tensor         * first;
    struct ggml_tensor         * limits;
    struct ggml_h2o_attn_extra   extra;
    struct ggml_tensor         * sinks;
    float                        scale;
    float                        softcap; // logits are softcap*tanh(scale*q.k/softcap); 0: scale*q.k
    enum ggml_h2o_attn_sums      sums;
};

// Views of one F32 tensor. (m, l, o) is an online-softmax state.
//
//   o         [d_v, n_head, n_q]       attention output
//   sums      [n_k, n_head_kv]         weights; of each query [n_k, n_head_kv, n_q]; or NULL
//   m         [1, n_q, n_head]         largest logit, the sink among them
//   l         [1, n_q, n_head]         sum of exp(logit - m), the sink among them
//
// A query that sees nothing, or only logits of -inf: m = -inf, l = 0, o = 0; with a sink, m is that, l = 1, o = 0. To
// fuse two states of the same queries, give the sinks to one of them.
struct ggml_h2o_attn_result {
    struct ggml_tensor * o;
    struct ggml_tensor * sums;
    struct ggml_tensor * m;
    struct ggml_tensor * l;
};

// Attention of queries to keys chosen by index, in one softmax. Keys that a query does not see have no effect on it,
// while all numbers are finite. One that is not makes l and o NaN where a query sees it, and may do so for other queries
// that are computed with it.
//
//   q         F32 [d_k, n_q, n_head], nb[0] == 4
//   k         [d_k, n_kv, n_head_kv], of F32 or a type that can be converted to it, whole rows
//   v         [d_v, n_kv, n_head_kv], likewise
GGML_API struct ggml_h2o_attn_result ggml_h2o_attn(
        struct ggml_context               * ctx,
        struct ggml_tensor                * q,
        struct ggml_tensor                * k,
        struct ggml_tensor                * v,
        const struct ggml_h2o_attn_params * params);

// Offsets in a source of n rows, in bytes: rows of k, then of v, of all heads, with the strides of k and v; then lists,
// shaped as `rows`.
struct ggml_h2o_attn_source_layout {
    size_t k;
    size_t v;
    size_t rows;
    size_t size;
};

GGML_API struct ggml_h2o_attn_source_layout ggml_h2o_attn_source_offsets(
        const struct ggml_tensor * k,
        const struct ggml_tensor * v,
        const struct ggml_tensor * rows,
        int64_t                    n);

#ifdef __cplusplus
}
#endif
