#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#define KERNEL h2o_product_avx2
#define VL 8
#define MIN_COLUMNS 8
#define N_STEPS 16 // numbers are 16 bits wide: the even ones of a dword in steps 0 to 7, the odd ones in the others
#define MORE 0
#define COLUMN_MORE 0

#include "ggml/product/kernels/rows.h"

namespace {

inline __m256i even_numbers(__m256i x) {
    return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
}

inline __m256i odd_numbers(__m256i x) {
    return _mm256_srai_epi16(x, 8);
}

inline vec_i first_sum(const char *) {
    return vec_i {};
}

inline vec_i multiply_add(vec_i sum, vec_i w, vec_i x) {
    return sum + (vec_i) _mm256_madd_epi16((__m256i) w, (__m256i) x);
}

inline void widen_columns(const vec_f * x, char * block) {
    for (int j = 0; j < 8; ++j) {
        _mm256_storeu_si256((__m256i *) (block + j*VL*4),       even_numbers((__m256i) x[j]));
        _mm256_storeu_si256((__m256i *) (block + (8 + j)*VL*4), odd_numbers((__m256i) x[j]));
    }
}

inline void widen_rows(const char * const * row, char * dst) {
    __m256i even[H2O_PRODUCT_ROWS];
    __m256i odd [H2O_PRODUCT_ROWS];
    for (int i = 0; i < H2O_PRODUCT_ROWS; ++i) {
        const __m256i x = _mm256_loadu_si256((const __m256i *) row[i]);
        even[i] = even_numbers(x);
        odd [i] = odd_numbers(x);
    }
    interleave(even, dst);
    interleave(odd,  dst + 8*H2O_PRODUCT_ROWS*4);
}

inline void add_column_sums(char *) {}

// The row's numbers without signs, which those of the column take: two products fit into 16 bits.
inline vec_i dot_blocks(vec_i w, const char * block) {
    const __m256i x = _mm256_sign_epi8(_mm256_loadu_si256((const __m256i *) block), (__m256i) w);
    return (vec_i) _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8((__m256i) w), x), _mm256_set1_epi16(1));
}

} // namespace

#include "ggml/product/kernels/simd.h"

#else

#include "ggml/product/kernels/kernel.h"

const h2o_product_kernel * const h2o_product_avx2 = nullptr;

#endif
