#pragma once

#include "h2o/graph/step-graph.h"

struct h2o_kv_layer;

// What a layer of the model asks for.
struct h2o_layer_attention {
    const h2o_kv_layer & layer; // whose K and V it reads
    bool                 owns_kv; // else they are another layer's, and what it gives to positions is not counted
    ggml_tensor        * sinks;   // F32 [n_head], a logit of each query's softmax that has no value; NULL: none
    float                scale;
    float                softcap; // logits are softcap*tanh(scale*q.k/softcap); 0: scale*q.k
};

// Attention of the step's queries q [n_embd_head_k, n_head, n_tokens], whose K and V are stored: [n_embd_head_v*n_head, n_tokens].
// What it gives to positions is added to g.sums.
ggml_tensor * h2o_build_attention(h2o_step_graph & g, const h2o_layer_attention & a, ggml_tensor * q);
