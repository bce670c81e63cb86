#pragma once

#include "ggml/simd/half.h"
#include "ggml/product/kernels/kernel.h"

#include <immintrin.h>

namespace {

// 8 dwords of each row: the first one of all rows, the second one, and so on
inline void interleave(const __m256i (& row)[H2O_PRODUCT_ROWS], char * dst) {
    const __m256i a = _mm256_unpacklo_epi32(row[0], row[1]);
    const __m256i b = _mm256_unpackhi_epi32(row[0], row[1]);
    const __m256i c = _mm256_unpacklo_epi32(row[2], row[3]);
    const __m256i d = _mm256_unpackhi_epi32(row[2], row[3]);

    const __m256i x[4] = {
        _mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d),
    };
    for (int i = 0; i < 4; ++i) {
        _mm_storeu_si128((__m128i *) (dst + i*16),       _mm256_castsi256_si128(x[i]));
        _mm_storeu_si128((__m128i *) (dst + (4 + i)*16), _mm256_extracti128_si256(x[i], 1));
    }
}

} // namespace
