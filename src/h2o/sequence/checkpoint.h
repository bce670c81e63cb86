#pragma once

#include <cstdint>
#include <memory>
#include <vector>

class h2o_row_copies;

// The part of a sequence's state before n_tokens that later tokens can change: to return to this position.
struct h2o_checkpoint {
    struct layer {
        uint32_t n_built;

        std::vector<int32_t> memory;        // [n_head_kv, n] positions of the current memory set, ascending
        std::vector<float>   memory_scores; // [n_head_kv, n]; without scores this and the next one are empty
        std::vector<float>   scores;        // [n_tokens - first, n_head_kv] of the positions from `first` on
    };

    uint32_t n_tokens;
    uint32_t n_scored; // the tokens before it have changed scores
    uint32_t first;

    bool is_scored;
    bool is_by_hand; // see h2o_sequence_state
    bool is_moved;   // the same, exact_end

    std::vector<layer> layers;

    // State of other layers here, such as a recurrent state: opaque; NULL if it is not kept.
    std::shared_ptr<const std::vector<uint8_t>> side;

    // Copies of the rows of its chunk and of the memory sets before it, opaque too; NULL if these have not moved, or none
    // are kept.
    std::shared_ptr<const h2o_row_copies> rows;
};
