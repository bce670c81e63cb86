#pragma once

#include "ggml/attention/attention.h"

struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;

struct h2o_attention_params : ggml_h2o_attn_params {
    ggml_tensor * k; // [n_embd_head_k, n_rows, n_head_kv]
    ggml_tensor * v; // [n_embd_head_v, n_rows, n_head_kv]
    ggml_tensor * q; // F32 [n_embd_head_k, n_q, n_head]

    // rows: I32 [n_k, n_head_kv]. Composed attention needs them.
    // first: the last n_q are the queries' own keys, the others are seen by all queries; NULL: all keys are
    // extra: only the fused operator has some

    bool wants_lse;
};

struct h2o_attention {
    ggml_tensor * o;    // F32 [n_embd_head_v, n_head, n_q]
    ggml_tensor * lse;  // F32 [1, n_head, n_q] log of the sum of exp(logit), the sink's too; NULL if it is not wanted
    ggml_tensor * sums; // F32 [n_k, n_head_kv, ..]; may be NULL
};

// One operator, which not every backend has.
h2o_attention h2o_attention_fused(ggml_context * ctx, const h2o_attention_params & params);

// The same by ggml's own operators, for any backend, without extra keys. Their order in gf saves memory.
h2o_attention h2o_attention_composed(ggml_context * ctx, ggml_cgraph * gf, const h2o_attention_params & params);

// Of two blocks of keys together (Milakov and Gimelshein 2018, arXiv:1805.02867), without sums. Each query sees keys of a.
//   share = 1/(1 + exp(lse_b - lse_a)), o = o_b + share*(o_a - o_b), lse = lse_a + log(1 + exp(lse_b - lse_a))
h2o_attention h2o_attention_fuse(ggml_context * ctx, const h2o_attention & a, const h2o_attention & b);
