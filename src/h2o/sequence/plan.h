#pragma once

#include "h2o/config/config.h"

#include <cstdint>
#include <vector>

// What one ubatch of a call computes, see docs/algorithm.md.
struct h2o_step {
    enum phase_t {
        SINGLE_PASS = 0, // (a piece of) one chunk attends to the memory set and to itself
        INTRA       = 1, // two_phase, phase 1: the whole call, every chunk attends to itself
        INTER       = 2, // two_phase, phase 2: (a piece of) one chunk attends to the memory set, fused with phase 1
        DECODE      = 3, // generated tokens (of one chunk): unscored attention to everything, or as in a single pass
        TAIL        = 4, // (a piece of) one chunk attends to everything before it and to itself
    };
    static constexpr size_t N_PHASES = 5;

    phase_t  phase;
    uint32_t pos;        // position of its first token
    uint32_t n_tokens;
    uint32_t offset;     // of its first token in the call
    uint32_t n_memory;   // positions in the memory set, 0 if there is none yet or the step does not attend to it
    bool     has_phase2; // INTRA: a phase 2 follows, which computes the outputs
    bool     keeps_attention = false; // TAIL: its weights are summed up for each position
    bool     keeps_choices   = false; // what all of its tiles choose, not the last one alone

    // phase 2 finds K and V in the cache, phase 1 has written them
    bool stores_kv() const { return phase != INTER; }
};

// A call: n_tokens after the first pos of a sequence.
struct h2o_call_params {
    uint32_t pos;
    uint32_t n_tokens;
    uint32_t n_tail;    // the last of them attend to everything that is kept
    uint32_t n_ubatch;  // tokens of a step at most, except in phase 1
    bool     is_decode; // they were generated
    bool     keeps_attention = false; // of the tail
    bool     keeps_choices   = false; // of all tiles
};

// Steps to reserve compute buffers for, in addition to a full chunk. With composed attention a tail's need grows with
// its length: it is left to the call.
std::vector<h2o_step> h2o_largest_steps(const h2o_config & config, uint32_t kv_size, uint32_t n_batch,
        uint32_t n_ubatch, bool fused_attention);

// The steps of a call, in order.
std::vector<h2o_step> h2o_plan(const h2o_config & config, const h2o_call_params & call);
