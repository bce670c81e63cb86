#pragma once

#include "ggml/attention/attention.h"

#include <cstdint>

struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;

// Attention to rows of a layer's cache, with the column sums of its softmax.
struct h2o_attention {
    ggml_tensor * o;    // [n_embd_head_v, n_head, n_q, n_block]
    ggml_tensor * m;    // [1, n_q, n_head, n_block] row max of the logits
    ggml_tensor * l;    // [1, n_q, n_head, n_block] sum of exp(logit - m)
    ggml_tensor * sums; // [n_k, n_head_kv, n_block] weights, summed over the queries that count and the query heads of the group; or
                        // [n_k, n_head_kv, n_q], each query's own; or nullptr
};

struct h2o_attention_params {
    ggml_tensor * k;       // [n_embd_head_k, n_rows, n_head_kv]
    ggml_tensor * v;       // [n_embd_head_v, n_rows, n_head_kv]
    ggml_tensor * q;       // F32 [n_embd_head_k, n_q, n_head, n_block]
    ggml_tensor * rows;    // I32 [n_k*n_block, n_head_kv]: the keys of each block of queries; nullptr, as one operator only: rows 0 to n_k - 1
    int64_t       n_k;     // without rows
    ggml_tensor * first;   // I32 [n_k]: the first query that sees a row. The last n_q are the queries' own, the others seen by all; nullptr: all are
    ggml_tensor * limits;  // I32 [n_q, n_block]: a query counts in the sums of rows up to its limit, rows ascend; nullptr: in all
    ggml_tensor * sinks;   // F32 [n_head]; nullptr: none
    float         scale;
    float         softcap; // 0: none
    int           sums;    // ggml_h2o_attn_sums

    // Extra keys. Composed attention has lists of all heads with queries, and no source
    ggml_h2o_attn_extra extra;
};

// One operator, which not every backend has.
h2o_attention h2o_attention_fused(ggml_context * ctx, const h2o_attention_params & params);

// The same by ggml's own operators, for any backend, but for rows of each query. Their order in gf saves memory.
h2o_attention h2o_attention_composed(ggml_context * ctx, ggml_cgraph * gf, const h2o_attention_params & params);

// ggml's flash attention, which most backends have, to the rows [first_row, first_row + n_k) of the cache, the same for every
// head. Without m, l and column sums.
//   mask: F16 [n_k, n_q], 0 or -inf
h2o_attention h2o_attention_flash(ggml_context * ctx, const h2o_attention_params & params, int64_t first_row, ggml_tensor * mask);

// Gathers rows of a layer's cache, every KV head its own, dequantised to F32.
//   t:    [n_embd, n_rows, n_head_kv]
//   rows: I32 [n, n_head_kv]
// Returns [n_embd, n, n_head_kv].
ggml_tensor * h2o_gather_rows(ggml_context * ctx, ggml_tensor * t, ggml_tensor * rows);
