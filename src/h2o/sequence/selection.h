#pragma once

#include <cstdint>
#include <vector>

// The memory sets of a closed chunk, by layer: for every position of each KV head, its index among the candidates,
// which are the n_before positions of the memory set before and then the chunk. [n_head_kv, n], ascending.
struct h2o_selection {
    uint32_t n_before;
    uint32_t n;

    std::vector<std::vector<uint32_t>> from;
};
