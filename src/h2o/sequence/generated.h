#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

// What generated tokens give to the scores of one layer.
//
// A generated token may be taken back, as a wrong guess is, and what was added to a score cannot be subtracted exactly. So the sums of
// the last tokens are kept apart, one by one, until their chunk is closed. Earlier ones are folded: added up, in the order of the
// tokens. No score depends on when that is done.
//
// Sums are [n_head_kv, n]: of the memory set, then of the open chunk up to the token.
class h2o_generated {
public:
    explicit h2o_generated(uint32_t n_head_kv) : n_head_kv(n_head_kv) {}

    // tokens that are not folded
    uint32_t n_tokens() const { return tokens.size(); }

    void append(std::vector<float> sums) { tokens.push_back(std::move(sums)); }

    // keeps the first n tokens that are not folded
    void truncate(uint32_t n) { tokens.resize(n); }

    // folds the first n tokens
    void fold(uint32_t n);

    // the folded sums and those of the first n tokens, added up: [n_head_kv, n_columns]; empty if there are none
    std::vector<float> sum(uint32_t n, size_t n_columns) const;

    // all tokens are folded, these are their sums
    void assign(std::vector<float> sums);

private:
    uint32_t n_head_kv;

    std::vector<float>             folded;
    std::deque<std::vector<float>> tokens;
};
