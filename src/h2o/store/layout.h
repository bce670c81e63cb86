#pragma once

#include "h2o/config/config.h"

#include <cstdint>

// Which row of a layer's cache holds which position. Attention knows rows, the user positions.
//
// Full: row i holds position i.
// Compact: rows [0, M) hold the memory set, every KV head its own, ascending, at the end of them; rows [M, M + S) the
// chunk after it. All else is evicted. Where keys of the memory set may move to other positions, M more rows are before
// all these: there K has it as it was written, so that every move is from there and rounding errors do not add up. V
// has nothing there.
class h2o_layout {
public:
    // kv_size: room for positions where all are kept: in the full layout, dense layers and the index of keys
    h2o_layout(const h2o_config & config, uint32_t kv_size)
        : is_compact(config.evict), moves_keys(config.positions == LLAMA_H2O_POSITIONS_CACHE), kv_size(kv_size),
          keeps_all(config.has_dense_layers() || config.has_key_index()), M(config.memory_size()),
                  S(config.chunk_size) {}

    // rows of every KV head
    uint32_t n_rows() const { return is_compact ? chunk_row() + S : kv_size; }

    // how many positions a sequence may have
    uint32_t n_positions() const { return is_compact && !keeps_all ? INT32_MAX : kv_size; }

    // the row of a position of the open chunk, the same for every layer and KV head; in the full layout of any position
    uint32_t row_of(uint32_t pos) const { return is_compact ? chunk_row() + pos%S : pos; }

    // compact: the first row of a memory set of n positions, for attention
    uint32_t first_row(uint32_t n) const { return chunk_row() - n; }

    // the same of its keys as written, if they have moved
    uint32_t first_written_row(uint32_t n) const { return M - n; }

    // rows before all others that V does not use
    uint32_t n_written_rows() const { return moves_keys ? M : 0; }

    // The last row of the positions up to this one. Rows are a memory set's and the chunk's after it; the position is
    // in that chunk, or up to a local window before it.
    int64_t row_limit(int64_t pos, uint32_t chunk_start) const { return is_compact ?
            chunk_row() + pos - chunk_start : pos; }

    const bool     is_compact;
    const bool     moves_keys;
    const uint32_t kv_size;

private:
    // compact: where the open chunk begins
    uint32_t chunk_row() const { return moves_keys ? 2*M : M; }

    const bool     keeps_all; // something of every position
    const uint32_t M;
    const uint32_t S;
};
