#pragma once

// Types of quantized weights. A weight is scale*(number - ZERO), or scale*number + minimum.
//
//   scales<N>(row, ...)  scales and minimums of the N blocks from a unit's start, in the order in which they are
//                        stored. For the other 8 - N blocks: minimum 0, scale finite
//   numbers<W>(row, b)   numbers of W blocks from b on, b from 0 to 7 and a multiple of W, from a unit's start
//
// Formats: ggml-common.h and ggml-quants.c (dequantize_row_*).

#include "ggml/product/kernels/x86.h"

namespace {

// A number has BITS bits, a block SCALES scales (and minimums).
template <int BITS_, int ZERO_, int SCALES_, bool MINS_>
struct number_kind {
    static constexpr int  BITS   = BITS_;
    static constexpr int  ZERO   = ZERO_;
    static constexpr int  SCALES = SCALES_;
    static constexpr bool MINS   = MINS_;
};

template <int BLOCKS_, int BYTES_, typename K>
struct units_of : K {
    static constexpr int BLOCKS = BLOCKS_;
    static constexpr int BYTES  = BYTES_;
    using kind = K;
};

inline uint32_t dword_at(const char * x) {
    uint32_t d;
    __builtin_memcpy(&d, x, sizeof(d));
    return d;
}

inline uint64_t qword_of(uint32_t low, uint32_t high) {
    return low | (uint64_t) high << 32;
}

inline uint64_t qword_at(const char * x) {
    return qword_of(dword_at(x), dword_at(x + 4));
}

// N halves, `stride` bytes apart
template <int N>
inline floats halves_at(const char * x, int stride) {
    halves h = {};
#pragma GCC unroll 8 // each is loaded into its lane
    for (int i = 0; i < N; ++i) {
        h[i] = *(const half_mem *) (x + i*stride);
    }
    return (floats) _mm256_cvtph_ps((__m128i) h);
}

// A unit of one block: a scale in F16, a minimum if there is one, and numbers.
template <int BYTES, typename K>
struct single_blocks : units_of<1, BYTES, K> {
    template <int N>
    static void scales(const char * row, floats * scale, floats * min) {
        scale[0] = halves_at<N>(row, BYTES);
        if (K::MINS) {
            min[0] = halves_at<N>(row + 2, BYTES);
        }
    }
};

// Numbers in 16 bytes at the block's end. If they have a fifth bit, it is in the 4 bytes before these.
template <int BYTES, int BITS, int ZERO, bool MINS>
struct nibble_blocks : single_blocks<BYTES, number_kind<BITS, ZERO, 1, MINS>> {
    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        const char * x = row + (b + 1)*BYTES - 16;
        return BITS == 5 ? add_bits<W>(nibbles<W>(x, BYTES), x - 4, BYTES, 16) : nibbles<W>(x, BYTES);
    }
};

using q4_0 = nibble_blocks<18, 4, 8, false>;
using q4_1 = nibble_blocks<20, 4, 0, true>;
using q5_0 = nibble_blocks<22, 5, 16, false>;
using q5_1 = nibble_blocks<24, 5, 0, true>;

struct q8_0 : single_blocks<34, number_kind<8, 128, 1, false>> {
    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return load_each<W>(row + b*BYTES + 2, BYTES) ^ 128;
    }
};

// -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113, with 128 added
alignas(16) const uint8_t iq4_table[16] = { 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241 };

struct iq4_nl : single_blocks<18, number_kind<8, 128, 1, false>> {
    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return look_up<W>(iq4_table, nibbles<W>(row + b*BYTES + 2, BYTES));
    }
};

// 0, 1, 2, 3, 4, 6, 8, 12 and their negatives, with 16 added: twice the numbers
alignas(16) const uint8_t mxfp4_table[16] = { 16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4 };

struct mxfp4 : units_of<1, 17, number_kind<5, 16, 1, false>> {
    template <int N>
    static void scales(const char * row, floats * scale, floats *) {
        uint32_t halves[8]; // of 2^(e - 127): subnormal numbers for 0 and 1
        for (int i = 0; i < 8; ++i) {
            const uint32_t e = i < N ? (uint8_t) row[i*BYTES] : 0;
            halves[i] = e < 2 ? 0x00200000u << e : (e - 1) << 23;
        }
        scale[0] = load_floats((const char *) halves);
    }

    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return look_up<W>(mxfp4_table, nibbles<W>(row + b*BYTES + 1, BYTES));
    }
};

// The types below have units of 8 blocks. The blocks' scales are numbers of 4 to 8 bits, times the unit's scale in F16.

// Numbers whose LOW low bits are at byte AT of the unit, 8/LOW blocks in every 32 bytes. If they have one bit more, it
// is in 32 bytes at HIGH.
template <int W, int LOW, int AT, int HIGH = -1>
inline bytes<W> bits_of(const char * unit, int b) {
    constexpr int     N    = 8/LOW;
    constexpr uint8_t MASK = (1 << LOW) - 1;
    constexpr uint8_t NEXT = 1 << LOW;

    const bytes<W> low = moved<W>(load_same<W>(unit + AT + b/N*32), b%N*LOW, LOW, 0) & MASK;
    if constexpr (HIGH >= 0) {
        return low | (moved<W>(load_same<W>(unit + HIGH), b, 1, LOW) & NEXT);
    }
    return low;
}

struct q2_k : units_of<8, 84, number_kind<2, 0, 2, true>> {
    template <int N>
    static void scales(const char * row, floats * scale, floats * min) {
        const float d = half_at(row + 80);
        const float m = half_at(row + 82);
        for (int i = 0; i < 2; ++i) {
            const uint64_t x = qword_at(row + 8*i);
            scale[i] = floats_of(x & 0x0f0f0f0f0f0f0f0f)*d;
            min[i]   = floats_of(x >> 4 & 0x0f0f0f0f0f0f0f0f)*-m;
        }
    }

    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return bits_of<W, 2, 16>(row, b);
    }
};

struct q3_k : units_of<8, 110, number_kind<3, 4, 2, false>> {
    template <int N>
    static void scales(const char * row, floats * scale, floats *) {
        const float    d    = half_at(row + 108);
        const uint64_t low  = qword_at(row + 96);
        const uint32_t high = dword_at(row + 104);
        for (int i = 0; i < 2; ++i) {
            const uint64_t top = qword_of(high >> 4*i & 0x03030303, high >> (4*i + 2) & 0x03030303);
            scale[i] = (floats_of((low >> 4*i & 0x0f0f0f0f0f0f0f0f) | top << 4) - 32.0f)*d;
        }
    }

    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return bits_of<W, 2, 32, 0>(row, b);
    }
};

// Q4_K and Q5_K: the unit's scale, the scale of its minimums, 8 scales and minimums of 6 bits.
template <int BYTES, int BITS>
struct blocks_of_6_bit_scales : units_of<8, BYTES, number_kind<BITS, 0, 1, true>> {
    template <int N>
    static void scales(const char * row, floats * scale, floats * min) {
        const float    d = half_at(row);
        const float    m = -half_at(row + 2);
        const uint32_t a = dword_at(row + 4);
        const uint32_t b = dword_at(row + 8);
        const uint32_t c = dword_at(row + 12);

        scale[0] = floats_of(qword_of(a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030)))*d;
        min[0]   = floats_of(qword_of(b & 0x3f3f3f3f, (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)))*m;
    }

    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return BITS == 5 ? bits_of<W, 4, 48, 16>(row, b) : bits_of<W, 4, 16>(row, b);
    }
};

using q4_k = blocks_of_6_bit_scales<144, 4>;
using q5_k = blocks_of_6_bit_scales<176, 5>;

struct q6_k : units_of<8, 210, number_kind<6, 32, 2, false>> {
    template <int N>
    static void scales(const char * row, floats * scale, floats *) {
        const float d = half_at(row + 208);
        for (int i = 0; i < 2; ++i) {
            scale[i] = floats_of_signed(qword_at(row + 192 + 8*i))*d;
        }
    }

    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        const bytes<W> low  = moved<W>(load_each<W>(row + b/4*64 + b%2*32, 32), b%4/2*4, 0, 0);
        const bytes<W> high = moved<W>(load_same<W>(row + 128 + b/4*32), b%4*2, 2, 4);
        return (low & 15) | (high & 0x30);
    }
};

struct iq4_xs : units_of<8, 136, number_kind<8, 128, 1, false>> {
    template <int N>
    static void scales(const char * row, floats * scale, floats *) {
        const float    d    = half_at(row);
        const uint32_t head = dword_at(row);
        const uint64_t low  = dword_at(row + 4);
        uint64_t x = 0;
        for (int i = 0; i < 8; ++i) {
            x |= ((low >> 4*i & 15) | (uint64_t) (head >> (16 + 2*i) & 3) << 4) << 8*i;
        }
        scale[0] = (floats_of(x) - 32.0f)*d;
    }

    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return look_up<W>(iq4_table, nibbles<W>(row + 8 + b*16, 16));
    }
};

// f with a null pointer to the class of these weights; NULL without one. A switch, as nothing of this file may run before
// it is known that the CPU can.
template <typename F>
const h2o_product_kernel * for_type(ggml_type type, const F & f) {
    switch (type) {
        case GGML_TYPE_Q4_0:   return f((q4_0 *) nullptr);
        case GGML_TYPE_Q4_1:   return f((q4_1 *) nullptr);
        case GGML_TYPE_Q5_0:   return f((q5_0 *) nullptr);
        case GGML_TYPE_Q5_1:   return f((q5_1 *) nullptr);
        case GGML_TYPE_Q8_0:   return f((q8_0 *) nullptr);
        case GGML_TYPE_IQ4_NL: return f((iq4_nl *) nullptr);
        case GGML_TYPE_MXFP4:  return f((mxfp4 *) nullptr);
        case GGML_TYPE_Q2_K:   return f((q2_k *) nullptr);
        case GGML_TYPE_Q3_K:   return f((q3_k *) nullptr);
        case GGML_TYPE_Q4_K:   return f((q4_k *) nullptr);
        case GGML_TYPE_Q5_K:   return f((q5_k *) nullptr);
        case GGML_TYPE_Q6_K:   return f((q6_k *) nullptr);
        case GGML_TYPE_IQ4_XS: return f((iq4_xs *) nullptr);
        default: return nullptr;
    }
}

} // namespace
