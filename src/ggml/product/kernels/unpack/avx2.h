#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace {

typedef float    floats __attribute__((vector_size(32)));
typedef uint32_t dwords __attribute__((vector_size(32)));

template <int W>
struct vector_of {
    typedef uint8_t bytes __attribute__((vector_size(32*W)));
};

} // namespace

#include "ggml/product/kernels/unpack/vectors.h"

namespace {

inline __m256i load_32(const char * x) {
    return _mm256_loadu_si256((const __m256i *) x);
}

inline __m128i load_16(const char * x) {
    return _mm_loadu_si128((const __m128i *) x);
}

template <>
inline bytes<1> load_each<1>(const char * x, int) {
    return (bytes<1>) load_32(x);
}

template <>
inline bytes<1> load_same<1>(const char * x) {
    return (bytes<1>) load_32(x);
}

template <>
inline bytes<1> moved<1>(bytes<1> x, int from, int, int to) {
    const __m256i y = (__m256i) x;
    return (bytes<1>) (from < to ? _mm256_slli_epi16(y, to - from) : _mm256_srli_epi16(y, from - to));
}

template <>
inline bytes<1> nibbles<1>(const char * x, int) {
    const __m256i both = _mm256_broadcastsi128_si256(load_16(x));
    return (bytes<1>) _mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4)) & 0xf;
}

template <>
inline bytes<1> add_bits<1>(bytes<1> y, const char * x, int, uint8_t value) {
    int32_t bits;
    __builtin_memcpy(&bits, x, sizeof(bits));
    const __m256i from = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i mask = _mm256_set1_epi64x(0x8040201008040201);
    const __m256i x8   = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), from);
    return y | ((bytes<1>) _mm256_cmpeq_epi8(_mm256_and_si256(x8, mask), mask) & value);
}

template <>
inline bytes<1> look_up<1>(const uint8_t * table, bytes<1> i) {
    return (bytes<1>) _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_16((const char *) table)), (__m256i) i);
}

inline floats load_floats(const char * x) {
    return (floats) _mm256_loadu_ps((const float *) x);
}

inline floats widen(halves x) {
    return (floats) _mm256_cvtph_ps((__m128i) x);
}

inline floats floats_of(uint64_t x) {
    return (floats) _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(x)));
}

inline floats floats_of_signed(uint64_t x) {
    return (floats) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(x)));
}

inline floats halved_powers(const uint32_t (& e)[8]) {
    const dwords x = { e[0], e[1], e[2], e[3], e[4], e[5], e[6], e[7] };
    return (floats) (x < 2 ? 0x00200000u << x : (x - 1) << 23);
}

} // namespace
