// Inputs of a step's graph: made with it, filled before each computation.

#include "h2o/graph/step-graph.h"

#include "h2o/select/scorer.h"
#include "h2o/sequence/state.h"
#include "h2o/store/kv-store.h"

#include "ggml-backend.h"

#include <algorithm>
#include <numeric>

static ggml_tensor * new_input(ggml_context * ctx, const char * name, ggml_type type, int64_t ne0, int64_t ne1 = 1,
        int64_t ne2 = 1) {
    if (ne0 == 0 || ne1 == 0) {
        return nullptr;
    }
    ggml_tensor * res = ggml_new_tensor_3d(ctx, type, ne0, ne1, ne2);
    ggml_set_input(res);
    return ggml_set_name(res, name);
}

template <typename T>
static void set_data(ggml_tensor * t, const std::vector<T> & data) {
    ggml_backend_tensor_set(t, data.data(), 0, data.size()*sizeof(T));
}

static bool is_used(const ggml_tensor * t) {
    return t && t->buffer;
}

h2o_step_inputs h2o_make_inputs(ggml_context * ctx, const h2o_graph_env & env, const h2o_sequence_state & state,
        const h2o_step & step, const h2o_step_shape & shape) {
    uint32_t n_head_kv_max = 0;
    for (const auto & layer : env.store.layers()) {
        n_head_kv_max = std::max(n_head_kv_max, layer.k.n_head);
    }

    const uint32_t n_keys     = shape.n_memory + shape.n_chunk;
    const bool     is_compact = env.store.layout.is_compact;

    h2o_step_inputs res;
    res.memory_chunk_rows = new_input(ctx, "h2o_memory_chunk_rows", GGML_TYPE_I32, n_keys, n_head_kv_max,
            is_compact ? 1 : state.layers.size());
    if (is_compact && shape.n_indexed > 0) {
        res.memory = new_input(ctx, "h2o_memory", GGML_TYPE_I32, shape.n_memory, n_head_kv_max, state.layers.size());
    }
    res.memory_chunk_first  = new_input(ctx, "h2o_memory_chunk_first",  GGML_TYPE_I32, n_keys);
    res.text_rows  = new_input(ctx, "h2o_text_rows",  GGML_TYPE_I32, shape.n_text, n_head_kv_max);
    res.text_first = new_input(ctx, "h2o_text_first", GGML_TYPE_I32, shape.n_text);
    if (h2o_limits_queries(env.config.scorer)) {
        res.limits = new_input(ctx, "h2o_limits", GGML_TYPE_I32, shape.n_tokens);
    }
    if (step.phase == h2o_step::INTRA) {
        for (const auto & part : h2o_chunk_parts(step, env.config.chunk_size)) {
            res.part_first.push_back(new_input(ctx, "h2o_part_first", GGML_TYPE_I32, part.n_k));
        }
    }
    return res;
}

// every head has the n rows from `first` on, then padding that is not seen
static void fill_rows(ggml_tensor * t, uint32_t first, uint32_t n) {
    if (is_used(t)) {
        std::vector<int32_t> rows(t->ne[0], 0);
        std::iota(rows.begin(), rows.begin() + n, first);
        for (int64_t h = 0; h < t->ne[1]; ++h) {
            ggml_backend_tensor_set(t, rows.data(), h*t->nb[1], t->nb[1]);
        }
    }
}

// The queries' own keys come last, before padding that no query sees. All queries see the earlier keys.
static void fill_first(ggml_tensor * t, uint32_t n_past, uint32_t n_q) {
    if (is_used(t)) {
        std::vector<int32_t> data(t->ne[0], 0);
        std::iota(data.begin() + n_past, data.begin() + n_past + n_q, 0);
        std::fill(data.begin() + n_past + n_q, data.end(), n_q);
        set_data(t, data);
    }
}

// Every layer and head: its memory set, then the positions from `start` on.
static void fill_positions(ggml_tensor * t, const h2o_sequence_state & state, uint32_t n_memory, uint32_t start) {
    if (!is_used(t)) {
        return;
    }
    std::vector<int32_t> positions(ggml_nelements(t));
    for (const auto & layer : state.layers) {
        for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
            const auto first = positions.begin() + (layer.index*t->ne[1] + h)*t->ne[0];
            std::copy_n(layer.memory.begin() + h*layer.n_memory(), n_memory, first);
            std::iota(first + n_memory, first + t->ne[0], start);
        }
    }
    set_data(t, positions);
}

void h2o_fill_inputs(const h2o_step_inputs & inputs, const h2o_graph_env & env, const h2o_sequence_state & state,
        const h2o_step & step, const h2o_step_shape & shape) {
    const auto & config = env.config;

    const uint32_t start  = config.chunk_start(step.pos);
    const uint32_t n_past = shape.n_memory + step.pos - start; // memory and chunk keys before the step's

    if (env.store.layout.is_compact) {
        fill_rows(inputs.memory_chunk_rows, env.store.layout.first_row(shape.n_memory), shape.n_memory + shape.n_chunk);
    } else { // a row is a position
        fill_positions(inputs.memory_chunk_rows, state, shape.n_memory, start);
    }
    fill_positions(inputs.memory, state, shape.n_memory, start);
    if (shape.n_chunk > 0) {
        fill_first(inputs.memory_chunk_first, n_past, step.n_tokens);
    }
    const uint32_t first_row = step.phase == h2o_step::INTRA ? start : 0;
    fill_rows(inputs.text_rows, first_row, step.pos + step.n_tokens - first_row);
    if (step.phase == h2o_step::INTRA) {
        const auto parts = h2o_chunk_parts(step, config.chunk_size);
        for (size_t i = 0; i < parts.size(); ++i) {
            fill_first(inputs.part_first[i], parts[i].n_k - parts[i].n_q, parts[i].n_q);
        }
    } else {
        fill_first(inputs.text_first, step.pos, step.n_tokens);
    }
    if (is_used(inputs.limits)) {
        std::vector<int32_t> limits(step.n_tokens);
        for (uint32_t i = 0; i < step.n_tokens; ++i) {
            limits[i] = env.store.layout.row_limit(h2o_query_limit(config.scorer, step.pos + i, config.local_window),
                    start);
        }
        set_data(inputs.limits, limits);
    }
}
