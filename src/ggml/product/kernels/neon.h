#pragma once

// Vectors of NEON: two for 8 floats, and for the numbers of a block. x86.h says what the functions do.

#include <arm_neon.h>

namespace {

typedef uint8_t vec_b __attribute__((vector_size(16)));

// two vectors of lanes X, with the operators of one
template <typename V, typename X>
struct two {
    V v[2];

#define OPERATOR(op)                                                                                             \
    friend two operator op(two a, two b) { return { { a.v[0] op b.v[0], a.v[1] op b.v[1] } }; } \
    friend two operator op(two a, X b)   { return { { a.v[0] op b, a.v[1] op b } }; }

    OPERATOR(*)
    OPERATOR(+)
    OPERATOR(-)
    OPERATOR(&)
    OPERATOR(|)
    OPERATOR(^)
};

using floats      = two<vec_f, float>;
using block_bytes = two<vec_b, uint8_t>;

template <int W>
using bytes = block_bytes; // W is 1

typedef uint16_t halves __attribute__((vector_size(16)));

inline vec_b load_16(const char * x) {
    return (vec_b) vld1q_u8((const uint8_t *) x);
}

template <int W>
inline block_bytes load_each(const char * x, int) {
    return { { load_16(x), load_16(x + 16) } };
}

template <int W>
inline block_bytes load_same(const char * x) {
    return load_each<W>(x, 0);
}

template <int W>
inline block_bytes moved(block_bytes x, int from, int, int to) {
    const int8x16_t by = vdupq_n_s8((int8_t) (to - from));
    return { { (vec_b) vshlq_u8((uint8x16_t) x.v[0], by), (vec_b) vshlq_u8((uint8x16_t) x.v[1], by) } };
}

template <int W>
inline block_bytes nibbles(const char * x, int) {
    return { { load_16(x) & 15, load_16(x) >> 4 } };
}

template <int W>
inline block_bytes add_bits(block_bytes y, const char * x, int, uint8_t value) {
    const uint8x16_t mask = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    for (int i = 0; i < 2; ++i) {
        const uint8x16_t bits = vcombine_u8(vdup_n_u8((uint8_t) x[2*i]), vdup_n_u8((uint8_t) x[2*i + 1]));
        y.v[i] |= (vec_b) vtstq_u8(bits, mask) & value;
    }
    return y;
}

template <int W>
inline block_bytes look_up(const uint8_t * table, block_bytes i) {
    const uint8x16_t entries = vld1q_u8(table);
    const auto look_up_16 = [&](vec_b x) { return (vec_b) vqtbl1q_u8(entries, (uint8x16_t) x); };
    return { { look_up_16(i.v[0]), look_up_16(i.v[1]) } };
}

inline floats load_floats(const char * x) {
    return { { load((const float *) x), load((const float *) x + 4) } };
}

inline floats widen(halves x) {
    const float16x8_t h = (float16x8_t) x; // the same bits
    return { { (vec_f) vcvt_f32_f16(vget_low_f16(h)), (vec_f) vcvt_f32_f16(vget_high_f16(h)) } };
}

inline vec_u widen_words(const char * x) {
    return (vec_u) vmovl_u16(vld1_u16((const uint16_t *) x));
}

inline floats floats_of(uint64_t x) {
    const uint16x8_t w = vmovl_u8(vcreate_u8(x));
    const auto float_of = [](uint16x4_t x) { return (vec_f) vcvtq_f32_u32(vmovl_u16(x)); };
    return { { float_of(vget_low_u16(w)), float_of(vget_high_u16(w)) } };
}

inline floats floats_of_signed(uint64_t x) {
    const int16x8_t w = vmovl_s8(vcreate_s8(x));
    const auto float_of = [](int16x4_t x) { return (vec_f) vcvtq_f32_s32(vmovl_s16(x)); };
    return { { float_of(vget_low_s16(w)), float_of(vget_high_s16(w)) } };
}

inline void interleave(const block_bytes * row, char * dst) {
    for (int h = 0; h < 2; ++h) {
        vec_f x[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            x[r] = (vec_f) row[r].v[h];
        }
        transpose<ROWS>(x);
        for (int i = 0; i < 4; ++i) {
            store((float *) (dst + (h*4 + i)*16), x[i]);
        }
    }
}

inline void load_columns(const char * const * column, int64_t offset, vec_f * x) {
    for (int h = 0; h < 2; ++h) {
        for (int i = 0; i < 4; ++i) {
            x[h*4 + i] = load((const float *) (column[i] + offset + h*16));
        }
        transpose<4>(x + h*4);
    }
}

template <int SCALES>
inline vec_f spread_scales(const floats * s, int j) {
    const int i = j*SCALES/2;
    return broadcast(s[i/8].v[i%8/4][i%4]);
}

template <typename T, int N>
inline vec_i load_numbers(const char * row, int j) {
    return (vec_i) T::template numbers<1>(row, j/2).v[j%2];
}

inline floats add_halves(vec_f x) {
    return { { x, vec_f {} } };
}

inline void add_up(const floats (& x)[ROWS], float * sum) {
    for (int r = 0; r < ROWS; ++r) {
        sum[r] = vaddvq_f32((float32x4_t) (x[r].v[0] + x[r].v[1]));
    }
}

} // namespace
