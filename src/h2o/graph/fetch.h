#pragma once

#include "h2o/graph/step-graph.h"
#include "h2o/store/kv-store.h"

// Nodes that bring K and V back from the cold store.

// I8, n rows: a source of ggml_h2o_attn_extra. Without `chosen` the rows are the step's lookups in the text. `chosen` is
// I32 of any shape, with -1 for none: row i holds position i then, and rows that were not chosen are undefined.
ggml_tensor * h2o_fetch_rows(h2o_step_graph & g, const h2o_kv_layer & layer, ggml_tensor * chosen, uint32_t n);

// [n_embd, n, n_head_kv] of the positions [first, first + n)
ggml_tensor * h2o_fetch_range(h2o_step_graph & g, const h2o_kv_layer & layer, h2o_kv_part part, uint32_t first,
        uint32_t n);
