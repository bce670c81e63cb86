#pragma once

#include "h2o/graph/step-graph.h"

struct h2o_kv_layer;

// What a layer of the model asks for.
struct h2o_layer_attention {
    const h2o_kv_layer & layer; // whose K and V it reads
    bool                 owns_kv; // else K and V are another layer's, and attention is not scored
    ggml_tensor        * sinks;   // F32 [n_head], a logit of each query's softmax that has no value; NULL: none
    float                scale;
    float                softcap; // logits are softcap*tanh(scale*q.k/softcap); 0: scale*q.k
};

// Attention [n_embd_head_v*n_head, n_tokens] of the step's queries q [n_embd_head_k, n_head, n_tokens] to stored K and
// V. Its column sums are added to g.sums.
ggml_tensor * h2o_build_attention(h2o_step_graph & g, const h2o_layer_attention & a, ggml_tensor * q);
