#if defined(__AVX512F__) && defined(__AVX512VNNI__)

#define KERNEL h2o_product_avx512
#define VL 16
#define MIN_COLUMNS 3
#define N_STEPS 8
#define MORE 1 // -128 times the sum of each column's numbers, as 128 is added to the rows' numbers
#define COLUMN_MORE 1 // in the same way, lane by lane

#include "h2o-attn-simd.h"
#include "h2o-product-kernel.h"

#include <immintrin.h>

namespace {

inline vec_i first_sum(const char * more) {
    return *(const vec_i_mem *) more;
}

inline vec_i multiply_add(vec_i sum, vec_i w, vec_i x) {
    return (vec_i) _mm512_dpbusd_epi32((__m512i) sum, (__m512i) w, (__m512i) x);
}

// Columns 0 and 8 of those that are given: 8 dwords each.
inline vec_f load_columns(const char * const * column, int64_t offset) {
    const __m512i x = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) (column[0] + offset)));
    return (vec_f) _mm512_inserti64x4(x, _mm256_loadu_si256((const __m256i *) (column[8] + offset)), 1);
}

inline void widen_columns(const vec_f * x, char * block) {
    __m512i sum = _mm512_setzero_si512();
    for (int j = 0; j < N_STEPS; ++j) {
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), (__m512i) x[j]);
        *(vec_i_mem *) (block + j*VL*4) = (vec_i) x[j];
    }
    *(vec_i_mem *) (block + (N_STEPS + 1)*VL*4) = (vec_i) sum*-128;
}

inline void interleave(const __m256i (& row)[H2O_PRODUCT_ROWS], char * dst);

inline void widen_rows(const char * const * row, char * dst) {
    __m256i x[H2O_PRODUCT_ROWS];
    for (int i = 0; i < H2O_PRODUCT_ROWS; ++i) {
        x[i] = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *) row[i]), _mm256_set1_epi8(-128));
    }
    interleave(x, dst);
}

inline void add_column_sums(char * block) {
    const __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_loadu_si512(block));
    _mm512_storeu_si512(block + VL*4, _mm512_mullo_epi32(sum, _mm512_set1_epi32(-128)));
}

template <int N>
inline vec_i dot_blocks(const char * w, const char * block) {
    __m512i x = _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *) w));
    if constexpr (N == 2) {
        x = _mm512_inserti64x4(x, _mm256_loadu_si256((const __m256i *) (w + H2O_PRODUCT_BLOCK_BYTES)), 1);
    }
    return multiply_add(first_sum(block + VL*4), (vec_i) _mm512_xor_si512(x, _mm512_set1_epi8(-128)), *(const vec_i_mem *) block);
}

inline vec_f scale_of_row(__m256 scales, int row) {
    const vec_i from = vec_i { 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4 } + row;
    return (vec_f) _mm512_permutexvar_ps((__m512i) from, _mm512_castps256_ps512(scales));
}

inline __m256 add_halves(vec_f x) {
    return _mm256_add_ps(_mm512_castps512_ps256((__m512) x), _mm512_extractf32x8_ps((__m512) x, 1));
}

inline vec_i repeat_4(const char * src) {
    return (vec_i) _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) src));
}

inline vec_f widen_halves(const uint16_t * x) {
    const __m128i a = _mm_setr_epi16(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]);
    const __m128i b = _mm_setr_epi16(x[8], x[9], x[10], x[11], x[12], x[13], x[14], x[15]);
    return (vec_f) _mm512_cvtph_ps(_mm256_set_m128i(b, a));
}

} // namespace

#include "h2o-product-simd.h"

#else

#include "h2o-product-kernel.h"

const h2o_product_kernel * const h2o_product_avx512 = nullptr;

#endif
