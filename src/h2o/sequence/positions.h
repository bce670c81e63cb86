#pragma once

#include "h2o/config/config.h"

#include <algorithm>
#include <cstdint>

// The positions to which RoPE rotates queries and keys. Only differences matter: a chunk may count from any position.
//
// Text: as in the text. Cache: T is the trained length. From the chunk on that ends beyond T, the memory set's
// positions more than T - S before the chunk count as T - S before it. The chunk's positions are then the last S of T.
// Where other layers rely on the text's positions, the chunk keeps them, and only the memory set moves.
class h2o_positions {
public:
    // is_text: layers with a window, or dense ones, have keys of earlier chunks
    h2o_positions(const h2o_config & config, uint32_t n_trained, bool is_text) : config(config), n_trained(n_trained),
            is_text(is_text) {}

    // the memory set of the chunk that begins here is not at its positions in the text
    bool is_moved(uint32_t chunk_start) const {
        return config.positions == LLAMA_H2O_POSITIONS_CACHE && chunk_start + config.chunk_size > n_trained;
    }

    // where a token's query and key are in its own chunk
    uint32_t own(uint32_t pos) const { return pos - base(config.chunk_start(pos)); }

    // rotation, in positions, from there to where a chunk with a moved memory set wants the key of a token at pos
    int32_t shift(uint32_t chunk_start, uint32_t pos) const {
        return (int32_t) (std::max(pos, farthest(chunk_start)) - base(chunk_start)) - (int32_t) own(pos);
    }

private:
    // the first position of the text that counts as where it is
    uint32_t farthest(uint32_t chunk_start) const { return chunk_start + config.chunk_size - n_trained; }

    // the position of the text that a chunk takes for 0
    uint32_t base(uint32_t chunk_start) const {
        return is_moved(chunk_start) && !is_text ? farthest(chunk_start) : 0;
    }

    const h2o_config & config;
    const uint32_t     n_trained;
    const bool         is_text;
};
