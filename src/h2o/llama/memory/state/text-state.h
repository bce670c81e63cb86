#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

// What a library of texts needs of a sequence's state (llama_state_seq_get_data), with H2O on or off. All throw
// std::exception.

// Bytes that are rows of tokens: n rows of row_bytes each, of the positions [first, first + n). Texts that begin with
// the same tokens, computed once, have the same rows of these.
struct h2o_rows {
    uint64_t offset;
    uint32_t first;
    uint32_t n;
    uint64_t row_bytes;
};

struct h2o_state_layout {
    size_t                n_bytes;
    std::vector<h2o_rows> rows;

    // Positions to which the sequence, restored from its state, can be cut: ranges, first and last, ascending. A state
    // lacks earlier sliding windows and recurrent states. With a rewind_step it is one range: round down.
    std::vector<std::pair<uint32_t, uint32_t>> points;
};

h2o_state_layout h2o_state_layout_of(const llama_context * ctx, llama_seq_id seq_id);

// A state that is copied piece by piece. Between two pieces other sequences may be computed, but not this one.
class h2o_state_copy {
public:
    virtual ~h2o_state_copy() = default;

    // Copies n bytes more. Returns whether there are others.
    virtual bool next(size_t n) = 0;
};

// Copies all but tensors to dst, which has n_bytes.
std::unique_ptr<h2o_state_copy> h2o_copy_state(llama_context * ctx, llama_seq_id seq_id, uint8_t * dst, size_t n_bytes);
