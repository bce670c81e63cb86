#pragma once

#include "h2o/llama/memory/memory.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

// A call on a sequence, from its first step on. Its steps change host state, rows and side caches. Without commit() the
// destructor restores them, but not statistics; attention that the call was to add to is forgotten. h2o_step_context
// makes, commits and destroys calls.
class h2o_call {
public:
    // Throws std::runtime_error if a device cannot be read or memory for copies is missing; the sequence is unchanged.
    h2o_call(llama_h2o_kv & kv, const std::vector<h2o_step> & steps, uint32_t n_tokens);
    ~h2o_call();

    // The step is computed next. If it begins a chunk, the one before is closed: its memory sets are chosen, their rows
    // moved, and the side caches saved at the boundary. Phase 1 closes none. Throws std::runtime_error.
    void begin_step(const h2o_step & step);

    // n_sequences share the step's time. Returns false if the progress callback ends the call.
    bool end_step(const h2o_step & step, uint32_t n_sequences);

    void commit();

    const uint32_t start;      // position of its first token
    const uint32_t open_start; // of its chunk, or of a complete one before it

private:
    llama_h2o_kv & kv;

    const uint32_t n_tokens;
    const bool     is_generated;
    const bool     keeps_attention;

    bool    is_committed = false;
    int64_t t_step_us    = 0; // when the graph of the step has begun

    std::optional<h2o_checkpoint>   checkpoint; // before the call; none if the sequence has one, or needs none
    std::shared_ptr<h2o_row_copies> rows;       // before the call; none if it moves no rows

    std::shared_ptr<const std::vector<uint8_t>> windows; // their rows before the call
};
