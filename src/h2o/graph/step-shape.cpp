// What the graph of a step depends on, and which keys its queries see.

#include "h2o/graph/step-graph.h"

#include "h2o/sequence/state.h"
#include "h2o/store/kv-store.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

// as upstream's mask: a step's graph serves the next ones, as the text grows
static constexpr uint32_t DECODE_PADDING = 256;

// A dense tail reads a layer of the cold store in up to 32 ranges.
static constexpr uint32_t MAX_RANGES = 32;

bool h2o_graph_env::decodes_by_upstream(const h2o_kv_layer & layer, bool alone) const {
    return alone && !layer.v_is_in_k() && upstream_decodes[layer.il] && !decodes_memory(layer) &&
            !store.layout.is_compact;
}

bool h2o_graph_env::has_padding(bool alone) const {
    return std::all_of(store.layers().begin(), store.layers().end(), [&](const h2o_kv_layer & layer) {
        return is_fused[layer.il] || decodes_by_upstream(layer, alone);
    });
}

bool h2o_graph_env::decodes_memory(const h2o_kv_layer & layer) const {
    return config.decode == LLAMA_H2O_DECODE_MEMORY && !layer.is_dense();
}

bool h2o_step_shape::operator==(const h2o_step_shape & other) const {
    static_assert(std::has_unique_object_representations_v<h2o_step_shape>, "no padding");
    return memcmp(this, &other, sizeof(other)) == 0;
}

h2o_tile_grid h2o_tile_grid_of(const h2o_step & step, const h2o_config & config) {
    if (step.phase == h2o_step::DECODE) {
        return { std::min(config.tile, step.n_tokens), 0 };
    }
    return { config.tile, step.pos % config.chunk_size % config.tile };
}

uint32_t h2o_range_size(const h2o_step & step, uint32_t chunk_size) {
    const uint32_t n = step.pos/chunk_size;

    return (n + MAX_RANGES - 1)/MAX_RANGES*chunk_size;
}

h2o_step_shape h2o_shape_of(const h2o_graph_env & env, const h2o_sequence_state & state, uint32_t seq,
        const h2o_step & step, uint32_t n_kv,
        bool alone) {
    const auto & config = env.config;

    const uint32_t start = config.chunk_start(step.pos);
    const uint32_t n_chunk = step.pos - start + step.n_tokens; // of the open chunk

    h2o_step_shape res = { seq, step.phase, step.n_tokens, step.n_memory, 0, 0, 0, 0, 0,
            state.is_scored ? 1u : step.keeps_attention ? 2u : 0u, // sums for scores have limits, others have none
            step.keeps_choices };

    switch (step.phase) {
        case h2o_step::SINGLE_PASS:
            res.n_chunk = n_chunk;
            res.n_text  = config.has_dense_layers() ? step.pos + step.n_tokens : 0;
            break;
        case h2o_step::TAIL:
            res.n_chunk = env.store.cold(seq) ? n_chunk : 0;
            res.n_text  = step.pos + step.n_tokens;
            res.pos     = step.pos;
            break;
        case h2o_step::INTRA:
            res.n_text = step.pos + step.n_tokens - start;
            res.pos    = step.pos;
            break;
        case h2o_step::INTER:
            res.pos    = step.pos;
            res.offset = step.offset;
            break;
        case h2o_step::DECODE: {
            const bool padded = env.has_padding(alone);
            if (config.decode == LLAMA_H2O_DECODE_MEMORY) {
                const uint32_t n_max = step.n_memory + std::min(config.chunk_size,
                        env.store.layout.n_positions() - start);
                const uint32_t n     = step.n_memory + n_chunk;

                res.n_chunk = (padded ? std::min<uint32_t>(GGML_PAD(n, DECODE_PADDING), n_max) : n) - step.n_memory;
            }
            if (config.decode == LLAMA_H2O_DECODE_FULL || config.has_dense_layers()) {
                res.n_text = padded ? n_kv : std::min(step.pos + step.n_tokens, n_kv);
            }
            break;
        }
    }

    if (env.index && step.n_memory > 0 && start > step.n_memory) {
        res.n_indexed = start;
    }
    return res;
}

std::vector<h2o_chunk_part> h2o_chunk_parts(const h2o_step & step, uint32_t chunk_size) {
    std::vector<h2o_chunk_part> res;
    for (uint32_t offset = 0; offset < step.n_tokens; offset += res.back().n_q) {
        const uint32_t pos   = step.pos + offset;
        const uint32_t start = pos - pos % chunk_size;
        const uint32_t end   = std::min(step.pos + step.n_tokens, start + chunk_size);
        res.push_back({ start, end - start, offset, end - pos });
    }
    return res;
}
