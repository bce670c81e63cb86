#pragma once

// How the numbers of a block are multiplied in panels, for each kind of numbers:
//   N_STEPS         so many steps, each with 4 bytes of every lane
//   MAX_DIRECT      up to so many columns are multiplied by rows where they lie
//   FIRST           whether a sum starts with what the columns' numbers add up to, times -ZERO
// An instruction set's file has also:
//   add_bytes(sum, x)                     4 signed bytes of each lane
//   widen_columns<K>(x, block)            from a block's numbers, dword i of every column in x[i], to what a panel holds
//   widen_rows<K>(w, dst)                 from the numbers of 4 rows to N_STEPS*4 bytes of each
//   add_products<K, N, SPREAD, H>(...)    of half H of a block, or of all of it if it has one scale
//   dot<K>(first, w, x)                   sums of 4 products in each lane, of a row's numbers and a column's

#include "ggml/product/kernels/unpack/types.h"
#include "ggml/product/kernels/kernel.h"

namespace {

constexpr int ROWS = H2O_PRODUCT_ROWS;

typedef int64_t vec_l __attribute__((vector_size(VL*4)));

// N dwords in every N lanes
template <int N>
inline vec_i repeat(const char * src) {
    static_assert(N == 1 || N == 2 || N == 4, "");
    if constexpr (N == 4) {
#if VL == 16
        return (vec_i) _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) src));
#else
        return (vec_i) _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) src));
#endif
    } else if constexpr (N == 2) {
        int64_t x;
        __builtin_memcpy(&x, src, sizeof(x));
        return (vec_i) (x - vec_l {});
    } else {
        int32_t x;
        __builtin_memcpy(&x, src, sizeof(x));
        return x - vec_i {};
    }
}

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

// Rows of 4 bytes of each lane by N panels.
template <int N, int SPREAD, typename F>
inline void for_step(const char * rows, const char * panels, int64_t panel_stride, int step, const F & add) {
    vec_i x[N];
    for (int p = 0; p < N; ++p) {
        x[p] = *(const vec_i_mem *) (panels + p*panel_stride + step*VL*4);
    }
    for (int r = 0; r < ROWS/SPREAD; ++r) {
        const vec_i w = repeat<SPREAD>(rows + (step*ROWS + r*SPREAD)*4);
        for (int p = 0; p < N; ++p) {
            add(p, r, w, x[p]);
        }
    }
}

} // namespace
