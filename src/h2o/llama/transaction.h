#pragma once

#include "h2o/llama/context.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

// A call on a sequence: begins host state, rows and side caches together. Without commit() the destructor undoes all.
class h2o_transaction {
public:
    // Throws std::runtime_error if a device cannot be read or memory for copies is missing; the sequence is unchanged.
    h2o_transaction(llama_h2o_kv & kv, const std::vector<h2o_step> & steps, uint32_t n_tokens);
    ~h2o_transaction();

    void commit();

    const uint32_t start; // position of its first token

private:
    llama_h2o_kv & kv;

    const uint32_t n_tokens;
    const bool     is_generated;

    bool is_committed = false;

    std::optional<h2o_checkpoint> checkpoint; // before the call; none if the sequence has one, or needs none
    std::optional<h2o_row_copies> rows;       // before the call; none if it moves no rows

    std::shared_ptr<const std::vector<uint8_t>> windows; // of side caches
};
