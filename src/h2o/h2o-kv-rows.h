#pragma once

#include "ggml.h"

#include <cstdint>
#include <vector>

// Host access to one layer's K or V as the cache stores it, whatever its type.
struct h2o_kv_rows {
    ggml_tensor * t; // [n_head*n_embd, n_rows]
    uint32_t n_head;
    uint32_t n_embd; // per head
    uint32_t n_rot;  // llama.cpp rotates quantized K and V by a Hadamard matrix of this size, in blocks; 0: it does not

    // float32 [n_head, r1 - r0, n_embd] of the rows [r0, r1), which are in range
    void get(uint32_t r0, uint32_t r1, float * dst) const;
    void set(uint32_t r0, uint32_t r1, const float * src) const;

    // The same in the cache's order [r1 - r0, n_head, n_embd].
    void get_in_order(uint32_t r0, uint32_t r1, std::vector<float> & dst) const;

    // takes back llama.cpp's rotation, or makes it: it is its own inverse
    void rotate(float * data, size_t n) const;
};
