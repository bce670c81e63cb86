// Steps of products by the instructions that multiply bytes without a sign by bytes with one.

#include "ggml/product/kernels/steps.h"

namespace {

template <typename K>
constexpr bool FIRST = K::ZERO != 0;

// more columns are multiplied faster in panels
template <typename K>
constexpr int MAX_DIRECT = 5;

// what steps depend on
template <typename K>
using steps_of = number_kind<8, K::ZERO != 0, K::SCALES, K::MINS>;

inline vec_i multiply_add(vec_i sum, vec_i w, vec_i x) {
#if VL == 16
    return (vec_i) _mm512_dpbusd_epi32((__m512i) sum, (__m512i) w, (__m512i) x);
#else
    return (vec_i) _mm256_dpbusd_avx_epi32((__m256i) sum, (__m256i) w, (__m256i) x);
#endif
}

} // namespace

#include "ggml/product/kernels/byte-steps.h"

namespace {

template <typename K>
inline void widen_rows(const bytes<1> * w, char * dst) {
#if defined(TILES)
    for (int r = 0; r < ROWS; ++r) {
        _mm256_storeu_si256((__m256i *) (dst + r*32), (__m256i) (w[r] - (uint8_t) K::ZERO));
    }
#else
    interleave(w, dst);
#endif
}

template <typename K>
inline vec_i dot(vec_i first, vec_i w, vec_i x) {
    return multiply_add(first, w, x);
}

} // namespace
