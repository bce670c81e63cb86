#pragma once

#include "ggml/attention/attention.h"

#include <cstdint>

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
};

// sums may be NULL
using h2o_attention = ggml_h2o_attn_result;

// One operator, which not every backend has.
h2o_attention h2o_attention_fused(ggml_context * ctx, const h2o_attention_params & params);

// The same by ggml's own operators, for any backend, without extra keys. Their order in gf saves memory.
h2o_attention h2o_attention_composed(ggml_context * ctx, ggml_cgraph * gf, const h2o_attention_params & params);
