#pragma once

#include "h2o/config/env.h"
#include "h2o/select/scorers.h"

#include "llama-h2o.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

// Parameters of H2O chunked sparse attention. The chunk grid is absolute: chunk c holds positions [c*S, (c + 1)*S).
struct h2o_config {
    h2o_config() = default; // off

    // throws std::invalid_argument, naming the parameter
    h2o_config(const llama_h2o_params & params, uint32_t chunk_size);

    uint32_t chunk_size   = 0; // S
    uint32_t local_window = 0; // L
    uint32_t heavy_budget = 0; // H
    uint32_t sink_tokens  = 0; // A

    const h2o_scorer * scorer = h2o_scorers().front();

    uint32_t lookup_budget = 0; // B
    uint32_t tile          = 0; // T

    llama_h2o_retrieval retrieval = LLAMA_H2O_RETRIEVAL_NGRAMS;

    uint32_t block_tokens = 1;     // positions that are kept together: 1, unless the scorer ranks blocks
    float    ema_alpha    = 1.0f;  // what is left of a score when a chunk is closed: all, unless the scorer forgets
    bool     shared_heads = false; // a layer's KV heads keep the same positions

    double keep_ratio = 0.0; // of the positions before a chunk, what its memory set holds; 0: M of them

    std::array<uint64_t, LLAMA_H2O_MAX_LAYERS/64> dense_layers = {};

    llama_h2o_schedule schedule = LLAMA_H2O_SCHEDULE_SINGLE_PASS;
    llama_h2o_decode   decode   = LLAMA_H2O_DECODE_FULL;

    bool evict = false; // K and V outside of the memory set and the open chunk are dropped

    std::string cold_store; // where they go then, see h2o_make_cold_place; empty: they are gone

    bool has_cold_store() const { return !cold_store.empty(); }

    llama_h2o_lossless_params lossless = {}; // how they are encoded there

    // Generated tokens that are scored can be taken back one by one if they are among the last ones: half as many as these, or all of
    // a call that has no more.
    static constexpr uint32_t MAX_GENERATED = 16;

    bool own_products = !h2o_env("H2O_NO_OWN_PRODUCTS"); // weights are multiplied by kernels of our own where that is faster

    bool is_dense(uint32_t il) const { return dense_layers[il/64] >> il%64 & 1; }

    bool has_dense_layers() const { return dense_layers != decltype(dense_layers)(); }

    bool has_tiles()     const { return lookup_budget > 0 && retrieval == LLAMA_H2O_RETRIEVAL_NGRAMS; }
    bool has_key_index() const { return lookup_budget > 0 && retrieval == LLAMA_H2O_RETRIEVAL_INDEX; }

    bool enabled() const { return memory_size() > 0; }

    // M = A + L + H
    uint64_t memory_size() const { return (uint64_t) sink_tokens + local_window + heavy_budget; }

    // How many positions the memory set of a chunk that ends at chunk_end holds: all that there are, M, or the ratio of them in whole
    // blocks, but at least sinks and local window. Never fewer than an earlier one.
    uint32_t n_memory(uint32_t chunk_end) const;

    uint32_t chunk_start(uint32_t pos) const { return pos - pos % chunk_size; }

    // Phase 1 shows the first tokens of a chunk next to nothing, so they become a sink for their chunk: attention goes to
    // them, and their keys are unlike the others. But only the sequence has a sink: how many of a chunk are never heavy
    // hitters, unless all others are.
    uint32_t n_chunk_sink() const { return schedule == LLAMA_H2O_SCHEDULE_TWO_PHASE ? std::min(8u, chunk_size/16) : 0; }
};
