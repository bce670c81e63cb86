#pragma once

#include "h2o/config/config.h"
#include "h2o/sequence/plan.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

class h2o_intra;
class h2o_key_index;
class h2o_kv_store;
struct h2o_kv_layer;
struct h2o_sequence_state;

// What all graphs of a context share.
struct h2o_graph_env {
    const h2o_config    & config;
    const h2o_kv_store  & store;
    const h2o_key_index * index; // NULL: none
    const h2o_intra     * intra; // NULL: not two_phase

    // by layer of the model
    std::vector<bool> is_fused; // attention is one operator of ours; else it is composed of ggml's
    std::vector<bool> upstream_decodes; // upstream's attention is the better one for a few queries that see everything

    // Upstream computes the attention of generated tokens to everything where that is better. It takes several
    // sequences only if they are neighbours. alone: the tokens are of one sequence
    bool decodes_by_upstream(const h2o_kv_layer & layer, bool alone) const;

    // attention to generated tokens' keys may have padding, in every layer: keys that no query sees
    bool has_padding(bool alone) const;

    // generated tokens attend to the layer's memory set
    bool decodes_memory(const h2o_kv_layer & layer) const;
};

// What the graph of a step depends on. It computes every step of this shape.
struct h2o_step_shape {
    uint32_t seq;
    uint32_t phase;
    uint32_t n_tokens;
    uint32_t n_memory;
    uint32_t n_chunk;   // keys of the open chunk, with the step's own, and padding; 0: no layer attends to it alone
    uint32_t n_text;    // keys of layers that attend to everything, with padding; 0: none does
    // positions before the chunk that queries choose from by the index of keys; 0: nothing to choose
    uint32_t n_indexed;
    uint32_t pos;       // where views depend on it, else 0
    uint32_t offset;    // likewise
    uint32_t is_scored; // attention is summed up
    uint32_t keeps_choices; // of all tiles

    bool operator==(const h2o_step_shape & other) const;
};

// n_kv: rows of everything, with upstream's padding. alone: the graph has no other step
h2o_step_shape h2o_shape_of(const h2o_graph_env & env, const h2o_sequence_state & state, uint32_t seq,
        const h2o_step & step, uint32_t n_kv, bool alone);

// Phase 1: the queries of one chunk in the call, and the keys of the chunk up to the last of them.
struct h2o_chunk_part {
    uint32_t pos;    // of the first key, where the chunk begins
    uint32_t n_k;
    uint32_t offset; // of the first query in the call
    uint32_t n_q;
};

std::vector<h2o_chunk_part> h2o_chunk_parts(const h2o_step & step, uint32_t chunk_size);

// Inputs of a step's graph. Unused inputs have no buffer.
struct h2o_step_inputs {
    ggml_tensor * memory_chunk_rows  = nullptr; // I32 [n_memory + n_chunk, n_head_kv, n_layer]; compact layout: n_layer 1
    ggml_tensor * memory = nullptr; // compact layout with an index of keys: I32 [n_memory, n_head_kv, n_layer], positions
    ggml_tensor * memory_chunk_first  = nullptr; // I32 [n_memory + n_chunk]: the first query that sees a key
    ggml_tensor * text_rows  = nullptr; // I32 [n_text, n_head_kv]: 0, 1, ...
    ggml_tensor * text_first = nullptr; // I32 [n_text]
    // I32 [n_tokens]: h2o_query_limit() of the queries, as rows; none if every query counts
    ggml_tensor * limits     = nullptr;

    std::vector<ggml_tensor *> part_first; // by part of phase 1: I32 [n_k]
};

// The attention of one step of a sequence: arguments and results of its builders.
struct h2o_step_graph {
    ggml_context * ctx;
    ggml_cgraph  * gf;

    const h2o_graph_env      & env;
    const h2o_sequence_state & state;

    h2o_step        step;
    h2o_step_shape  shape;
    h2o_step_inputs inputs;

    std::map<std::pair<ggml_tensor *, ggml_backend_dev_t>, ggml_tensor *> copies; // of inputs, on devices of layers

    // a layer's column sums
    struct sums_t {
        uint32_t      layer; // index
        uint32_t      first; // phase 1: position of the first key
        ggml_tensor * t;     // F32 [n_k, n_head_kv, ..]: one for each generated token

        std::vector<float> data; // of t
    };
    std::vector<sums_t> sums;

    // a layer's extra keys, chosen by the index: of the step's last tiles, all or one
    struct choice_t {
        uint32_t      layer; // index
        ggml_tensor * t;     // I32 [n, n_tiles, n_head_kv]: positions

        std::vector<int32_t> data; // of t
    };
    std::vector<choice_t> choices;

    // functions of the nodes that read the cold store: they write dst, as the ith of nth threads
    using fetch = std::function<void(ggml_tensor * dst, int ith, int nth)>;
    std::vector<std::shared_ptr<fetch>> fetches;
};

// The tiles of a step's queries, which share their extra keys. The grid begins with the chunk. For generated tokens it
// begins with the step, so that the graph serves the next one.
struct h2o_tile_grid {
    uint32_t size;
    uint32_t offset; // of the step's first query in its tile

    uint32_t n_tiles(uint32_t n_queries) const { return (offset + n_queries + size - 1)/size; }
};

h2o_tile_grid h2o_tile_grid_of(const h2o_step & step, const h2o_config & config);

// positions of a range of the cold store that a dense tail reads at once
uint32_t h2o_range_size(const h2o_step & step, uint32_t chunk_size);

// the graph's inputs, to be filled before each computation
h2o_step_inputs h2o_make_inputs(ggml_context * ctx, const h2o_graph_env & env, const h2o_sequence_state & state,
        const h2o_step & step, const h2o_step_shape & shape);

void h2o_fill_inputs(const h2o_step_inputs & inputs, const h2o_graph_env & env, const h2o_sequence_state & state,
        const h2o_step & step, const h2o_step_shape & shape);

// A graph that is computed.
struct h2o_computed_graph {
    virtual ~h2o_computed_graph() = default;

    // Adds column sums, and chosen extra keys if they are kept, to the sequences. Waits for the devices if there are any.
    virtual void read_results(ggml_backend_sched_t sched, bool keeps_last) = 0;
};
