#pragma once

// The part that is compiled once for each instruction set.

#include <stdint.h>

// of B, in a tile
constexpr int64_t H2O_LOW_RANK_ROWS = 64;

struct h2o_low_rank_kernel {
    // Adds a tile [rank][H2O_LOW_RANK_ROWS] times y [n][rank] to n sums of H2O_LOW_RANK_ROWS numbers, `stride` numbers apart.
    void (*add)(const float * tile, const float * y, int64_t rank, float * sums, int64_t stride, int64_t n);
};
