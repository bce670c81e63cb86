#pragma once

#include "h2o/llama/memory/memory.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

// The tokens of one sequence in a batch, and the steps that compute them. These change host state, rows and side caches.
// Without commit() the destructor restores what a call that has begun has changed, but not statistics; attention that the
// call was to add to is forgotten. h2o_step_context begins, commits and destroys calls.
class h2o_call {
public:
    h2o_call(llama_h2o_kv & kv, uint32_t first) : kv(kv), first(first), start(kv.state().n_tokens) {}
    ~h2o_call();

    // it can be computed together with others
    bool is_decoded_token() const { return n_tokens == 1 && steps.front().phase == h2o_step::DECODE; }

    bool has_begun() const { return is_begun; }

    // Throws std::runtime_error if a device cannot be read or memory for copies is missing; the sequence is unchanged.
    void begin();

    // The step is computed next. If it begins a chunk, the one before is closed: its memory sets are chosen, their rows
    // moved, and the side caches saved at the boundary. Phase 1 closes none. Throws std::runtime_error.
    void begin_step(const h2o_step & step);

    // n_sequences share the step's time. Returns false if the progress callback ends the call.
    bool end_step(const h2o_step & step, uint32_t n_sequences);

    void commit();

    llama_h2o_kv & kv;

    const uint32_t first; // index of its first token in the batch
    const uint32_t start; // position of that token

    uint32_t n_tokens   = 0;
    bool     has_logits = false; // of its last token: else more of the prompt follows

    std::vector<h2o_step> steps;

private:
    bool is_begun     = false;
    bool is_committed = false;

    uint32_t open_start = 0; // of the chunk of its first token, or of a complete one before it
    int64_t  t_step_us  = 0; // when the graph of the step has begun

    std::optional<h2o_checkpoint>   checkpoint; // before the call; none if the sequence has one, or needs none
    std::shared_ptr<h2o_row_copies> rows;       // before the call; none if it moves no rows

    std::shared_ptr<const std::vector<uint8_t>> windows; // their rows before the call
};

using h2o_calls = std::vector<std::unique_ptr<h2o_call>>;

// A step of a call; of none where compute buffers are reserved.
struct h2o_call_step {
    llama_h2o_kv * kv;
    h2o_step       step;
    h2o_call *     call;
};
