#pragma once

struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;

// Attention to rows of a layer's cache, with the column sums of its softmax.
struct h2o_attention {
    ggml_tensor * o;    // [n_embd_head_v, n_head, n_q, n_block]
    ggml_tensor * m;    // [1, n_q, n_head, n_block] row max of the logits
    ggml_tensor * l;    // [1, n_q, n_head, n_block] sum of exp(logit - m)
    ggml_tensor * sums; // [n_k, n_head_kv, n_block] weights, summed over the queries that count and the query heads of the group
};

struct h2o_attention_params {
    ggml_tensor * k;       // [n_embd_head_k, n_kv, n_head_kv]
    ggml_tensor * v;       // [n_embd_head_v, n_kv, n_head_kv], or transposed [n_kv, n_embd_head_v, n_head_kv]
    ggml_tensor * q;       // F32 [n_embd_head_k, n_q, n_head, n_block]
    ggml_tensor * rows;    // I32 [n_k*n_block, n_head_kv]: the keys of each block of queries
    ggml_tensor * limits;  // I32 [n_q, n_block]: a query counts in the sums of rows up to its limit, rows ascend; nullptr: in all
    bool          v_trans;
    bool          causal;  // query i sees keys [0, n_k - n_q + i]; else all
    float         scale;
};

// One operator, which not every backend has; v is not transposed.
h2o_attention h2o_attention_fused(ggml_context * ctx, const h2o_attention_params & params);

// The same by ggml's own operators, for any backend. Their order in gf saves memory.
h2o_attention h2o_attention_composed(ggml_context * ctx, ggml_cgraph * gf, const h2o_attention_params & params);
