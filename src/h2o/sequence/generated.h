#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

// Attention that the open chunk's generated tokens have given to one layer's positions, until the chunk is closed.
//
// A generated token may be undone, as a rejected draft is, and a number that was added to a score cannot be subtracted
// exactly. So the sums after each of the last tokens are kept.
//
// Sums are [n_head_kv, n_columns]: of the memory set, then of the open chunk up to the token.
class h2o_generated {
public:
    explicit h2o_generated(uint32_t n_head_kv) : n_head_kv(n_head_kv) {}

    // tokens that can be undone singly
    uint32_t n_tokens() const { return totals.size() - 1; }

    // the next token's sums
    void append(const float * sums, size_t stride, size_t n_columns);

    // keeps the first n tokens
    void truncate(uint32_t n) { totals.resize(n + 1); }

    // the first n tokens can no longer be undone
    void fold(uint32_t n) { totals.erase(totals.begin(), totals.begin() + n); }

    // the sums after the first n tokens; empty if there are none
    std::vector<float> sum(uint32_t n, size_t n_columns) const;

    // these are the sums, of tokens that cannot be undone
    void assign(std::vector<float> sums) { totals = { std::move(sums) }; }

private:
    uint32_t n_head_kv;

    std::deque<std::vector<float>> totals { 1 }; // before the first token, and after each
};
