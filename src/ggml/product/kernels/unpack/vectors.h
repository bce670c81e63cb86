#pragma once

// What unpacking needs of an instruction set. The file that includes this defines floats, 8 of them, and vector_of<W>::bytes: W*32 bytes,
// the numbers of W blocks. Both have the operators of numbers.

#include <stdint.h>

namespace {

typedef uint16_t halves __attribute__((vector_size(16)));

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

inline floats load_floats(const char * x);

inline floats widen(halves x);

// 8 bytes without a sign, and with one
inline floats floats_of(uint64_t x);
inline floats floats_of_signed(uint64_t x);

// half of 2^(e - 127), e from 0 to 255: for 0 and 1 a subnormal number
inline floats halved_powers(const uint32_t (& e)[8]);

} // namespace
