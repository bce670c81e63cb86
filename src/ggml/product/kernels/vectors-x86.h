#pragma once

// What products need of AVX2 or AVX-512 besides how a step is done.

namespace {

// 8 dwords of each row: the first one of all rows, the second one, and so on
inline void interleave(const bytes<1> * row, char * dst) {
    const __m256i a = _mm256_unpacklo_epi32((__m256i) row[0], (__m256i) row[1]);
    const __m256i b = _mm256_unpackhi_epi32((__m256i) row[0], (__m256i) row[1]);
    const __m256i c = _mm256_unpacklo_epi32((__m256i) row[2], (__m256i) row[3]);
    const __m256i d = _mm256_unpackhi_epi32((__m256i) row[2], (__m256i) row[3]);

    const __m256i x[4] = {
        _mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d),
    };
    for (int i = 0; i < 4; ++i) {
        _mm_storeu_si128((__m128i *) (dst + i*16),       _mm256_castsi256_si128(x[i]));
        _mm_storeu_si128((__m128i *) (dst + (4 + i)*16), _mm256_extracti128_si256(x[i], 1));
    }
}

// dword i of every column in x[i], i from 0 to 7
inline void load_columns(const char * const * column, int64_t offset, vec_f * x) {
    for (int i = 0; i < 8; ++i) {
        const __m256i a = _mm256_loadu_si256((const __m256i *) (column[i] + offset));
#if VL == 16
        const __m256i b = _mm256_loadu_si256((const __m256i *) (column[i + 8] + offset));
        x[i] = (vec_f) _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
#else
        x[i] = (vec_f) a;
#endif
    }
    transpose<8>(x);
}

// sums of 4 signed bytes, times `by`
inline void put_sums(const char * numbers, int by, char * dst) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), _mm256_loadu_si256((const __m256i *) numbers));
    _mm256_storeu_si256((__m256i *) dst, _mm256_madd_epi16(pairs, _mm256_set1_epi16(by)));
}

// Of scales for 8 blocks, each in all lanes of its numbers, for the j-th vector of blocks.
template <int SCALES>
inline vec_f spread_scales(const floats * s, int j) {
#if VL == 16
    if constexpr (SCALES == 2) {
        const vec_i from = vec_i { 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3 } + 4*j;
        const __m512 all = _mm512_insertf32x8(_mm512_castps256_ps512((__m256) s[0]), (__m256) s[1], 1);
        return (vec_f) _mm512_permutexvar_ps((__m512i) from, all);
    } else {
        const vec_i from = vec_i { 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1 } + 2*j;
        return (vec_f) _mm512_permutexvar_ps((__m512i) from, _mm512_castps256_ps512((__m256) s[0]));
    }
#else
    if constexpr (SCALES == 2) {
        const vec_i from = vec_i { 0, 0, 0, 0, 1, 1, 1, 1 } + j%4*2;
        return (vec_f) _mm256_permutevar8x32_ps((__m256) s[j/4], (__m256i) from);
    } else {
        return (vec_f) _mm256_permutevar8x32_ps((__m256) s[0], _mm256_set1_epi32(j));
    }
#endif
}

// each of 8 scales once, or twice side by side
template <int SCALES>
inline void load_scales(const char * src, floats * s) {
    const __m256 x = (__m256) load_floats(src);
    if constexpr (SCALES == 2) {
        s[0] = (floats) _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
        s[1] = (floats) _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
    } else {
        s[0] = (floats) x;
    }
}

// The j-th vector of a row's numbers, zeros where block N and those after it are.
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

// The sum of each vector's numbers.
inline void add_up(const floats (& x)[ROWS], float * sum) {
    const __m256 sums = _mm256_hadd_ps(
        _mm256_hadd_ps((__m256) x[0], (__m256) x[1]), _mm256_hadd_ps((__m256) x[2], (__m256) x[3]));
    _mm_storeu_ps(sum, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
}

} // namespace
