#pragma once

#include "ggml.h"

#include <cstdint>
#include <vector>

enum h2o_kv_part { H2O_K, H2O_V };

// Host access to one layer's K or V as the cache stores it, whatever its type.
struct h2o_kv_rows {
    ggml_tensor * t; // [n_head*n_embd, n_rows] of all sequences
    size_t   row0;   // the first one of this sequence
    uint32_t n_head;
    uint32_t n_embd; // per head
    uint32_t n_rot;  // llama.cpp rotates quantized K and V by a Hadamard matrix of this size, in blocks; 0: it does not

    ggml_tensor * mean = nullptr; // F32 [n_embd, n_head]: keys are stored less this, and then rotated; NULL: whole

    // float32 [n_head, r1 - r0, n_embd] to the rows [r0, r1), which are in range
    void set(uint32_t r0, uint32_t r1, const float * src) const;

    // float32 [n, n_head, n_embd] of copied rows of the cache
    void decode(const uint8_t * bytes, size_t n, float * dst) const;

    // Moves each head's rows from[i] to first + i, which is not after from[i]. from [n_head, n], ascending
    void move(uint32_t first, const std::vector<int32_t> & from) const;

    // the rows [r0, r1) are free
    void release(uint32_t r0, uint32_t r1) const;

    // bytes of the rows [r0, ...)
    std::vector<uint8_t> get_bytes(uint32_t r0, uint32_t r1) const;
    void                 set_bytes(uint32_t r0, const std::vector<uint8_t> & bytes) const;

    // undoes or makes llama.cpp's rotation: it is its own inverse
    void rotate(float * data, size_t n) const;
};

// The pages of a tensor's rows [r0, r1) are returned to the operating system until they are written.
void h2o_release_rows(ggml_tensor * t, size_t r0, size_t r1);

// the Walsh-Hadamard matrix [n, n], orthonormal and symmetric
std::vector<float> h2o_hadamard(uint32_t n);
