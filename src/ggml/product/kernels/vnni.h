// Steps of products by the instructions that multiply bytes without a sign by bytes with one. 128 is added to the rows' numbers, so
// sums start with -128 times the sum of each column's numbers: MORE, and lane by lane COLUMN_MORE.

#define N_STEPS 8
#define MORE 1
#define COLUMN_MORE 1

#include "ggml/product/kernels/rows.h"

namespace {

inline vec_i first_sum(const char * more) {
    return *(const vec_i_mem *) more;
}

inline vec_i multiply_add(vec_i sum, vec_i w, vec_i x) {
#if VL == 16
    return (vec_i) _mm512_dpbusd_epi32((__m512i) sum, (__m512i) w, (__m512i) x);
#else
    return (vec_i) _mm256_dpbusd_avx_epi32((__m256i) sum, (__m256i) w, (__m256i) x);
#endif
}

inline void widen_columns(const vec_f * x, char * block) {
    vec_i sum = {};
    for (int j = 0; j < N_STEPS; ++j) {
        sum = multiply_add(sum, vec_i {} + 0x01010101, (vec_i) x[j]);
        *(vec_i_mem *) (block + j*VL*4) = (vec_i) x[j];
    }
    *(vec_i_mem *) (block + (N_STEPS + 1)*VL*4) = sum*-128;
}

inline void widen_rows(const char * const * row, char * dst) {
    __m256i x[H2O_PRODUCT_ROWS];
    for (int i = 0; i < H2O_PRODUCT_ROWS; ++i) {
        x[i] = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *) row[i]), _mm256_set1_epi8(-128));
    }
    interleave(x, dst);
}

inline void add_column_sums(char * block) {
    *(vec_i_mem *) (block + VL*4) = multiply_add(vec_i {}, vec_i {} + 0x01010101, *(const vec_i_mem *) block)*-128;
}

inline vec_i dot_blocks(vec_i w, const char * block) {
    return multiply_add(first_sum(block + VL*4), w ^ (int) 0x80808080, *(const vec_i_mem *) block);
}

} // namespace
