#pragma once

// What unpacking needs of AVX2.

#include <immintrin.h>
#include <stdint.h>

namespace {

typedef uint8_t  bytes  __attribute__((vector_size(32)));
typedef uint16_t words  __attribute__((vector_size(32)));
typedef float    floats __attribute__((vector_size(32)));
typedef uint16_t halves __attribute__((vector_size(16)));

inline bytes load_bytes(const char * x) {
    return (bytes) _mm256_loadu_si256((const __m256i *) x);
}

// 32 numbers from the low halves of 16 bytes, then the high ones
inline bytes nibbles(const char * x) {
    const __m128i low = _mm_loadu_si128((const __m128i *) x);
    return (bytes) _mm256_set_m128i(_mm_srli_epi16(low, 4), low) & 0xf;
}

// byte i is `value` if bit i of 4 bytes is set, else 0
inline bytes bits(const char * x, char value) {
    int32_t all;
    __builtin_memcpy(&all, x, sizeof(all));
    const __m256i from = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i mask = _mm256_set1_epi64x(0x8040201008040201);
    const __m256i x8   = _mm256_shuffle_epi8(_mm256_set1_epi32(all), from);
    return (bytes) _mm256_cmpeq_epi8(_mm256_and_si256(x8, mask), mask) & (uint8_t) value;
}

// entries of a table of 16 bytes
inline bytes look_up(const uint8_t * table, bytes i) {
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) table));
    return (bytes) _mm256_shuffle_epi8(t, (__m256i) i);
}

inline floats widen(halves x) {
    return (floats) _mm256_cvtph_ps((__m128i) x);
}

// 8 bytes without a sign, and with one
inline floats floats_of(uint64_t x) {
    return (floats) _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(x)));
}

inline floats floats_of_signed(uint64_t x) {
    return (floats) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(x)));
}

} // namespace
