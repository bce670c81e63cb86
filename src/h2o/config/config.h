#pragma once

#include "llama-h2o.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>

// The checked parameters of H2O, and sizes derived from them. Chunk c holds the positions [c*S, (c + 1)*S) of a text.
struct h2o_config : llama_h2o_params {
    h2o_config() : llama_h2o_params() {} // off

    // throws std::invalid_argument, naming the parameter
    explicit h2o_config(const llama_h2o_params & params);

    // The last MAX_GENERATED scored generated tokens can be undone singly, and all of a call of up to as many.
    static constexpr uint32_t MAX_GENERATED = 16;

    bool enabled() const { return memory_size() > 0; }

    // weights are multiplied by kernels of our own where there are some
    bool own_products() const { return llama_h2o_params_own_products(this); }

    bool is_dense(uint32_t il) const { return dense_layers[il/64] >> il%64 & 1; }

    bool has_dense_layers() const {
        return std::any_of(std::begin(dense_layers), std::end(dense_layers), [](uint64_t word) { return word != 0; });
    }

    bool has_cold_store() const { return *cold_store; }

    bool has_key_index() const { return lookup_budget > 0; }

    // a memory set has heavy hitters, in addition to sinks and local window
    bool ranks() const { return heavy_budget > 0; }

    // positions are kept in blocks, by the sums of their ranks, and their scores shrink when a chunk is closed
    bool ranks_blocks() const { return scorer == LLAMA_H2O_SCORER_BLOCK_EMA; }

    // M = A + L + H
    uint64_t memory_size() const { return (uint64_t) sink_tokens + local_window + heavy_budget; }

    // Size of the memory set of a chunk that ends at chunk_end: M, or the ratio of the positions in whole blocks, at
    // least sinks and local window. It never shrinks.
    uint32_t n_memory(uint32_t chunk_end) const;

    // Extra keys of a query of the chunk that begins here, by the index: lookup_budget in the ninth chunk, more later
    // on, so that the loss grows little with the text. B(c) = B*(c/8)^0.75.
    uint32_t n_extra(uint32_t chunk_start) const;

    uint32_t chunk_start(uint32_t pos) const { return pos - pos % chunk_size; }

    // Tiles are numbered over all chunks: the first of a chunk begins with it, the last may be shorter.
    uint32_t tiles_per_chunk() const { return (chunk_size - 1)/tile + 1; }

    uint32_t tile_of   (uint32_t pos)   const { return pos/chunk_size*tiles_per_chunk() + pos % chunk_size/tile; }
    uint64_t tile_start(uint32_t index) const { return (uint64_t) (index/tiles_per_chunk())*chunk_size +
            index % tiles_per_chunk()*tile; }

    // Phase 1 shows the first tokens of a chunk next to nothing, so they become a sink for their chunk: attention goes
    // to them, and their keys are unlike the others. But only the sequence has a sink: how many of a chunk are never
    // heavy hitters, unless all others are.
    uint32_t n_chunk_sink() const { return schedule == LLAMA_H2O_SCHEDULE_TWO_PHASE ? std::min(8u, chunk_size/16) : 0; }

    // a text that is the same where a state of one configuration can be restored with another
    std::string state_key() const;
};
