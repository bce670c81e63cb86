#pragma once

// What unpacking needs of an instruction set. Numbers of W blocks are a vector of W*32 bytes.

#include <stdint.h>

namespace {

typedef float    floats __attribute__((vector_size(32)));
typedef uint32_t dwords __attribute__((vector_size(32)));
typedef uint16_t halves __attribute__((vector_size(16)));

template <int W>
struct vector_of {
    typedef uint8_t bytes __attribute__((vector_size(32*W)));
};

template <int W>
using bytes = typename vector_of<W>::bytes;

// 32 bytes for each block, `stride` apart
template <int W>
bytes<W> load_each(const char * x, int stride);

// the same 32 bytes for each
template <int W>
bytes<W> load_same(const char * x);

// Shifted so that what was bit `from` of each byte is bit `to`, with `step` more of `from` for the second block. Other bits are anything.
template <int W>
bytes<W> moved(bytes<W> x, int from, int step, int to);

// 32 numbers from the low halves of 16 bytes, then the high ones; those of the blocks are `stride` apart
template <int W>
bytes<W> nibbles(const char * x, int stride);

// `value` more where bit i of the block's 4 bytes is set; y has not got that bit
template <int W>
bytes<W> add_bits(bytes<W> y, const char * x, int stride, uint8_t value);

// entries of a table of 16 bytes
template <int W>
bytes<W> look_up(const uint8_t * table, bytes<W> i);

floats widen(halves x);

// 8 bytes without a sign, and with one
floats floats_of(uint64_t x);
floats floats_of_signed(uint64_t x);

} // namespace
