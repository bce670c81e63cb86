#pragma once

// The part of ggml_h2o_top_keys that is compiled once for each instruction set. Its files include no headers with
// inline functions: the linker could take a copy that was compiled for another CPU.

#include <stdint.h>

// numbers of a block, of Q4_0 and Q8_0 too
constexpr int H2O_INDEX_BLOCK = 32;

// Bytes of a block: a scale in F16, then 16 bytes, byte i with the numbers i and 16 + i, each of them plus 8; or the 32
// numbers.
constexpr int H2O_INDEX_Q4_0_BYTES = 18;
constexpr int H2O_INDEX_Q8_0_BYTES = 34;

// A block of a query in 8 bits, -127 to 127.
struct h2o_index_query {
    int8_t  x[H2O_INDEX_BLOCK];
    int32_t offset; // -8 times their sum, for the 8 in each number of a key
};

// Keys are packed into panels of n_lanes keys. For each block of 32 numbers a panel has the scales of all keys in F32,
// then of the keys' 16 bytes the first 4 of all keys, the next 4, and so on. A key whose first scale is NaN scores NaN.
struct h2o_index_kernel {
    int n_lanes;

    // n keys in Q4_0, or in Q8_0 and rounded to that, each stride bytes after the other. Keys that the last panel lacks
    // score NaN.
    void (*pack)(const char * keys, int64_t stride, int64_t n, int64_t d, bool is_q8_0, char * panels);

    // For each key the largest (score - offset)*factor of n_q queries [n_q][d/32 blocks], -inf if all are NaN.
    void (*score)(const char * panels, int64_t n_panels, int64_t d, const h2o_index_query * q, int64_t n_q,
            const float * factors, const float * offsets, float * scores);

    // The k-th largest of n numbers (whole panels). No number is NaN.
    float (*find)(const float * x, int64_t n, int64_t k);

    // The n_top highest of n scores (whole panels) that are not NaN, as their numbers in ascending order; of equal ones
    // the first. Returns how many there are. values and rows are scratch for n + n_lanes numbers.
    int64_t (*select)(const float * scores, int64_t n, int64_t n_top, float * values, int32_t * rows, int32_t * top);
};

// bytes of a panel
constexpr int64_t h2o_index_panel_size(int64_t n_lanes, int64_t d) {
    return d/H2O_INDEX_BLOCK*n_lanes*(int64_t) (sizeof(float) + H2O_INDEX_BLOCK/2);
}
