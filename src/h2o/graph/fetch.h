#pragma once

#include "h2o/graph/step-graph.h"
#include "h2o/store/kv-store.h"

#include "ggml/attention/attention.h"

// Nodes that bring K and V back from the cold store.

// Gives extra keys, lists of positions before the chunk, a source: the rows that each head has chosen, in its lists'
// order, or the whole text's where that is less. A prompt's chunk lists most of it: 91 % at 8,192 tokens of a 0.5B model.
void h2o_fetch_rows(h2o_step_graph & g, const h2o_kv_layer & layer, ggml_h2o_attn_extra & extra);

// [n_embd, n, n_head_kv] of the positions [first, first + n)
ggml_tensor * h2o_fetch_range(h2o_step_graph & g, const h2o_kv_layer & layer, h2o_kv_part part, uint32_t first,
        uint32_t n);
