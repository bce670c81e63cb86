#pragma once

// Vectors of AVX2 and AVX-512: for unpacking, 8 floats and the numbers of W blocks (2 at once only with AVX-512).

#include "ggml/product/kernels/kernel.h"
#include "ggml/simd/half.h"

#include <immintrin.h>

namespace {

constexpr int ROWS = H2O_PRODUCT_ROWS;

typedef float    floats __attribute__((vector_size(32)));
typedef uint16_t halves __attribute__((vector_size(16)));
typedef uint16_t half_mem __attribute__((aligned(1), may_alias));

template <int W>
struct vector_of {
    typedef uint8_t bytes __attribute__((vector_size(32*W)));
};

template <int W>
using bytes = typename vector_of<W>::bytes;

inline __m256i load_32(const char * x) {
    return _mm256_loadu_si256((const __m256i *) x);
}

inline __m128i load_16(const char * x) {
    return _mm_loadu_si128((const __m128i *) x);
}

template <typename V> // a template, as AVX2 has no such vectors
inline __m512i join(V a, V b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

// 32 bytes of each block; the blocks are `stride` bytes apart
template <int W>
inline bytes<W> load_each(const char * x, int stride) {
    if constexpr (W == 1) {
        return (bytes<W>) load_32(x);
    } else {
        return (bytes<W>) join(load_32(x), load_32(x + stride));
    }
}

// the same 32 bytes for each block
template <int W>
inline bytes<W> load_same(const char * x) {
    if constexpr (W == 1) {
        return (bytes<W>) load_32(x);
    } else {
        return (bytes<W>) _mm512_maskz_broadcast_i64x4(0xff, load_32(x)); // without a mask GCC 12 warns
    }
}

// Bit `from` of each byte is shifted to bit `to`; for the second block, bit `from` + `step`. Other bits are undefined.
template <int W>
inline bytes<W> moved(bytes<W> x, int from, int step, int to) {
    if constexpr (W == 1) {
        const __m256i y = (__m256i) x;
        return (bytes<W>) (from < to ? _mm256_slli_epi16(y, to - from) : _mm256_srli_epi16(y, from - to));
    } else {
        const __m512i by = join(_mm256_set1_epi32((from - to) & 31), _mm256_set1_epi32((from + step - to) & 31));
        return (bytes<W>) _mm512_rorv_epi32((__m512i) x, by);
    }
}

// 32 numbers of each block: the low halves of 16 bytes, then the high halves
template <int W>
inline bytes<W> nibbles(const char * x, int stride) {
    if constexpr (W == 1) {
        const __m256i both = _mm256_broadcastsi128_si256(load_16(x));
        return (bytes<W>) _mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4)) & 0xf;
    } else {
        const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(x)), load_16(x + stride), 1);
        const __m512i from = _mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3);
        const __m512i all  = _mm512_permutexvar_epi64(from, _mm512_castsi256_si512(both));
        return (bytes<W>) _mm512_srlv_epi64(all, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)) & 0xf;
    }
}

// adds `value` to the numbers whose bits are set in the block's 4 bytes, where y does not have that bit yet
template <int W>
inline bytes<W> add_bits(bytes<W> y, const char * x, int stride, uint8_t value) {
    uint32_t low;
    __builtin_memcpy(&low, x, sizeof(low));
    if constexpr (W == 1) {
        const __m256i from = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
        const __m256i mask = _mm256_set1_epi64x(0x8040201008040201);
        const __m256i x8   = _mm256_shuffle_epi8(_mm256_set1_epi32((int) low), from);
        return y | ((bytes<W>) _mm256_cmpeq_epi8(_mm256_and_si256(x8, mask), mask) & value);
    } else {
        uint32_t high;
        __builtin_memcpy(&high, x + stride, sizeof(high));
        const uint64_t bits = low | (uint64_t) high << 32;
        return (bytes<W>) _mm512_mask_add_epi8((__m512i) y, bits, (__m512i) y, _mm512_set1_epi8(value));
    }
}

// entries of a table of 16 bytes
template <int W>
inline bytes<W> look_up(const uint8_t * table, bytes<W> i) {
    const __m128i entries = load_16((const char *) table);
    if constexpr (W == 1) {
        return (bytes<W>) _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), (__m256i) i);
    } else {
        return (bytes<W>) _mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(0xffff, entries), (__m512i) i);
    }
}

inline floats load_floats(const char * x) {
    return (floats) _mm256_loadu_ps((const float *) x);
}

// 8 unsigned bytes, and 8 signed bytes
inline floats floats_of(uint64_t x) {
    return (floats) _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(x)));
}

inline floats floats_of_signed(uint64_t x) {
    return (floats) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(x)));
}

// 8 dwords of each row: the first dword of all rows, the second, and so on
inline void interleave(const bytes<1> * row, char * dst) {
    const __m256i a = _mm256_unpacklo_epi32((__m256i) row[0], (__m256i) row[1]);
    const __m256i b = _mm256_unpackhi_epi32((__m256i) row[0], (__m256i) row[1]);
    const __m256i c = _mm256_unpacklo_epi32((__m256i) row[2], (__m256i) row[3]);
    const __m256i d = _mm256_unpackhi_epi32((__m256i) row[2], (__m256i) row[3]);

    const __m256i x[4] = {
        _mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c),
        _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d),
    };
    for (int i = 0; i < 4; ++i) {
        _mm_storeu_si128((__m128i *) (dst + i*16),       _mm256_castsi256_si128(x[i]));
        _mm_storeu_si128((__m128i *) (dst + (4 + i)*16), _mm256_extracti128_si256(x[i], 1));
    }
}

// dword i of every column in x[i], i from 0 to 7
inline void load_columns(const char * const * column, int64_t offset, vec_f * x) {
    for (int i = 0; i < 8; ++i) {
#if VL == 16
        x[i] = (vec_f) join(load_32(column[i] + offset), load_32(column[i + 8] + offset));
#else
        x[i] = (vec_f) load_32(column[i] + offset);
#endif
    }
    transpose<8>(x);
}

// The scales of the j-th vector's numbers, each in all lanes of its numbers, from the scales of 8 blocks.
template <int SCALES>
inline vec_f spread_scales(const floats * s, int j) {
    vec_i from;
    for (int lane = 0; lane < VL; ++lane) {
        from[lane] = (j*VL + lane)*SCALES/8;
    }
#if VL == 16
    const __m512 first = _mm512_castps256_ps512((__m256) s[0]);
    const __m512 all   = SCALES == 2 ? _mm512_insertf32x8(first, (__m256) s[SCALES - 1], 1) : first;
    return (vec_f) _mm512_permutexvar_ps((__m512i) from, all);
#else
    return (vec_f) _mm256_permutevar8x32_ps((__m256) s[j*SCALES/8], (__m256i) from); // modulo 8
#endif
}

// The j-th vector of a row's numbers, zeros from block N on.
template <typename T, int N>
inline vec_i load_numbers(const char * row, int j) {
#if VL == 16
    if constexpr (N == 1) {
        return (vec_i) _mm512_zextsi256_si512((__m256i) T::template numbers<1>(row, j));
    }
#endif
    return (vec_i) T::template numbers<VL/8>(row, j*VL/8);
}

inline floats add_halves(vec_f x) {
#if VL == 16
    return (floats) _mm256_add_ps(_mm512_castps512_ps256((__m512) x), _mm512_extractf32x8_ps((__m512) x, 1));
#else
    return (floats) x;
#endif
}

// the sum of each vector's floats
inline void add_up(const floats (& x)[ROWS], float * sum) {
    const __m256 sums = _mm256_hadd_ps(
        _mm256_hadd_ps((__m256) x[0], (__m256) x[1]), _mm256_hadd_ps((__m256) x[2], (__m256) x[3]));
    _mm_storeu_ps(sum, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
}

} // namespace
