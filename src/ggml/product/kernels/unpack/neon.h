#pragma once

#include <arm_neon.h>
#include <stdint.h>

namespace {

// two vectors of each
struct floats {
    float32x4_t v[2];
};

inline floats operator*(floats a, floats b) {
    return { { vmulq_f32(a.v[0], b.v[0]), vmulq_f32(a.v[1], b.v[1]) } };
}

inline floats operator*(float a, floats b) {
    return { { vmulq_n_f32(b.v[0], a), vmulq_n_f32(b.v[1], a) } };
}

inline floats operator+(floats a, floats b) {
    return { { vaddq_f32(a.v[0], b.v[0]), vaddq_f32(a.v[1], b.v[1]) } };
}

inline floats operator-(floats a, float b) {
    return { { vsubq_f32(a.v[0], vdupq_n_f32(b)), vsubq_f32(a.v[1], vdupq_n_f32(b)) } };
}

inline floats & operator+=(floats & a, floats b) {
    return a = a + b;
}

struct block_bytes {
    uint8x16_t v[2];
};

inline block_bytes operator&(block_bytes a, uint8_t b) {
    return { { vandq_u8(a.v[0], vdupq_n_u8(b)), vandq_u8(a.v[1], vdupq_n_u8(b)) } };
}

inline block_bytes operator^(block_bytes a, uint8_t b) {
    return { { veorq_u8(a.v[0], vdupq_n_u8(b)), veorq_u8(a.v[1], vdupq_n_u8(b)) } };
}

inline block_bytes operator|(block_bytes a, block_bytes b) {
    return { { vorrq_u8(a.v[0], b.v[0]), vorrq_u8(a.v[1], b.v[1]) } };
}

template <int W>
struct vector_of {
    typedef block_bytes bytes;
};

} // namespace

#include "ggml/product/kernels/unpack/vectors.h"

namespace {

inline uint8x16_t load_16(const char * x) {
    return vld1q_u8((const uint8_t *) x);
}

template <>
inline bytes<1> load_each<1>(const char * x, int) {
    return { { load_16(x), load_16(x + 16) } };
}

template <>
inline bytes<1> load_same<1>(const char * x) {
    return load_each<1>(x, 0);
}

template <>
inline bytes<1> moved<1>(bytes<1> x, int from, int, int to) {
    const int8x16_t by = vdupq_n_s8((int8_t) (to - from));
    return { { vshlq_u8(x.v[0], by), vshlq_u8(x.v[1], by) } };
}

template <>
inline bytes<1> nibbles<1>(const char * x, int) {
    return { { vandq_u8(load_16(x), vdupq_n_u8(15)), vshrq_n_u8(load_16(x), 4) } };
}

template <>
inline bytes<1> add_bits<1>(bytes<1> y, const char * x, int, uint8_t value) {
    const uint8x16_t mask = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    for (int i = 0; i < 2; ++i) {
        const uint8x16_t bits = vcombine_u8(vdup_n_u8((uint8_t) x[2*i]), vdup_n_u8((uint8_t) x[2*i + 1]));
        y.v[i] = vorrq_u8(y.v[i], vandq_u8(vtstq_u8(bits, mask), vdupq_n_u8(value)));
    }
    return y;
}

template <>
inline bytes<1> look_up<1>(const uint8_t * table, bytes<1> i) {
    return { { vqtbl1q_u8(vld1q_u8(table), i.v[0]), vqtbl1q_u8(vld1q_u8(table), i.v[1]) } };
}

inline floats load_floats(const char * x) {
    return { { vld1q_f32((const float *) x), vld1q_f32((const float *) x + 4) } };
}

inline floats widen(halves x) {
    const float16x8_t h = (float16x8_t) x; // the same bits
    return { { vcvt_f32_f16(vget_low_f16(h)), vcvt_f32_f16(vget_high_f16(h)) } };
}

inline floats floats_of(uint64_t x) {
    const uint16x8_t w = vmovl_u8(vcreate_u8(x));
    return { { vcvtq_f32_u32(vmovl_u16(vget_low_u16(w))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(w))) } };
}

inline floats floats_of_signed(uint64_t x) {
    const int16x8_t w = vmovl_s8(vcreate_s8(x));
    return { { vcvtq_f32_s32(vmovl_s16(vget_low_s16(w))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(w))) } };
}

inline floats halved_powers(const uint32_t (& e)[8]) {
    floats res;
    for (int i = 0; i < 2; ++i) {
        const uint32x4_t x      = vld1q_u32(e + 4*i);
        const uint32x4_t small  = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(x));
        const uint32x4_t normal = vshlq_n_u32(vsubq_u32(x, vdupq_n_u32(1)), 23);
        res.v[i] = vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(x, vdupq_n_u32(2)), small, normal));
    }
    return res;
}

} // namespace
