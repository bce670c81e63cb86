#pragma once

#include "h2o/graph/step-graph.h"

// Attention of the step's queries q [n_embd_head_k, n_head, n_tokens], whose K and V are stored: [n_embd_head_v*n_head, n_tokens].
// What it gives to positions is added to g.sums.
ggml_tensor * h2o_build_attention(h2o_step_graph & g, const h2o_kv_layer & layer, ggml_tensor * q, float kq_scale);
