#pragma once

#include "h2o/config/config.h"

#include <cstdint>

// To which positions RoPE rotates queries and keys. Attention knows differences only, so each chunk may count from where it likes.
//
// Text: positions are those of the text. Cache (StreamingLLM, arXiv:2309.17453): from the chunk on that ends beyond what the model was
// trained for, the memory set's n keys are at the n positions before the chunk, and the first of them is 0. Where other layers count on
// the text's positions, so does the chunk, and only the memory set moves.
class h2o_positions {
public:
    // is_text: layers with a window, or dense ones, have keys of earlier chunks
    h2o_positions(const h2o_config & config, uint32_t n_trained, bool is_text) : config(config), n_trained(n_trained), is_text(is_text) {}

    // the memory set of the chunk that begins here is not at its positions in the text
    bool is_moved(uint32_t chunk_start) const {
        return config.positions == LLAMA_H2O_POSITIONS_CACHE && chunk_start + config.chunk_size > n_trained;
    }

    // where a token's query and key are in its own chunk
    uint32_t own(uint32_t pos) const { return pos - base(config.chunk_start(pos)); }

    // by how much the i-th key of n in the memory set of a chunk that is moved, a token at pos, is to go on from there
    int32_t shift(uint32_t chunk_start, uint32_t i, uint32_t n, uint32_t pos) const {
        return (int32_t) (chunk_start - n + i - base(chunk_start)) - (int32_t) own(pos);
    }

private:
    // the position of the text that a chunk takes for 0
    uint32_t base(uint32_t chunk_start) const {
        return is_moved(chunk_start) && !is_text ? chunk_start - config.n_memory(chunk_start) : 0;
    }

    const h2o_config & config;
    const uint32_t     n_trained;
    const bool         is_text;
};
