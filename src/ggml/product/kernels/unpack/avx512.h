#pragma once

// Two blocks at once.

#include "ggml/product/kernels/unpack/avx2.h"

namespace {

inline __m512i join(__m256i a, __m256i b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

template <>
inline bytes<2> load_each<2>(const char * x, int stride) {
    return (bytes<2>) join(load_32(x), load_32(x + stride));
}

template <>
inline bytes<2> load_same<2>(const char * x) {
    return (bytes<2>) _mm512_maskz_broadcast_i64x4(0xff, load_32(x)); // without a mask GCC 12 warns
}

template <>
inline bytes<2> moved<2>(bytes<2> x, int from, int step, int to) {
    const __m512i by = join(_mm256_set1_epi32((from - to) & 31), _mm256_set1_epi32((from + step - to) & 31));
    return (bytes<2>) _mm512_rorv_epi32((__m512i) x, by);
}

template <>
inline bytes<2> nibbles<2>(const char * x, int stride) {
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(x)), load_16(x + stride), 1);
    const __m512i all  = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_castsi256_si512(both));
    return (bytes<2>) _mm512_srlv_epi64(all, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)) & 0xf;
}

template <>
inline bytes<2> add_bits<2>(bytes<2> y, const char * x, int stride, uint8_t value) {
    uint32_t low;
    uint32_t high;
    __builtin_memcpy(&low,  x, sizeof(low));
    __builtin_memcpy(&high, x + stride, sizeof(high));
    return (bytes<2>) _mm512_mask_add_epi8((__m512i) y, low | (uint64_t) high << 32, (__m512i) y, _mm512_set1_epi8(value));
}

template <>
inline bytes<2> look_up<2>(const uint8_t * table, bytes<2> i) {
    return (bytes<2>) _mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(0xffff, load_16((const char *) table)), (__m512i) i);
}

} // namespace
