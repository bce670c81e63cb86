#pragma once

// What there is to know of a type of weights, and its numbers. A weight is scale*(number - ZERO), or scale*number + minimum.
//
//   BLOCKS, BYTES       of a unit
//   scales<N>(row, ...) scales and minimums of N blocks from a unit's start, 1 or 2 for each in the order in which they lie; of
//                       others minimums are 0, and scales finite if these are
//   numbers<W>(row, b)  those of W blocks from b on, b from 0 to 7 and a multiple of W, from a unit's start
//
// Formats: ggml-common.h and ggml-quants.c (dequantize_row_*).

#if defined(__ARM_NEON)
#include "ggml/product/kernels/unpack/neon.h"
#elif VL == 16
#include "ggml/product/kernels/unpack/avx512.h"
#else
#include "ggml/product/kernels/unpack/avx2.h"
#endif
#include "ggml/simd/half.h"

namespace {

// BITS a number has, so many SCALES (and minimums) a block.
template <int BITS_, int ZERO_, int SCALES_, bool MINS_>
struct number_kind {
    static constexpr int  BITS   = BITS_;
    static constexpr int  ZERO   = ZERO_;
    static constexpr int  SCALES = SCALES_;
    static constexpr bool MINS   = MINS_;
    using kind = number_kind;
};

inline uint32_t dword_at(const char * x) {
    uint32_t d;
    __builtin_memcpy(&d, x, sizeof(d));
    return d;
}

inline uint64_t qword_at(const char * x) {
    uint64_t q;
    __builtin_memcpy(&q, x, sizeof(q));
    return q;
}

inline uint64_t qword_of(uint32_t low, uint32_t high) {
    return low | (uint64_t) high << 32;
}

} // namespace

#include "ggml/product/kernels/unpack/blocks.h"
#include "ggml/product/kernels/unpack/superblocks.h"
