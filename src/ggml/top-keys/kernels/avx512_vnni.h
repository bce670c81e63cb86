#include "ggml/simd/half.h"
#include "ggml/top-keys/kernels/kernel.h"

#include <immintrin.h>

namespace {

inline vec_i add_products(vec_i sum, vec_i keys, vec_i q) {
    return (vec_i) _mm512_dpbusd_epi32((__m512i) sum, (__m512i) keys, (__m512i) q);
}

inline vec_i sums_of(vec_i a, vec_i b) {
    return a + b;
}

inline vec_f load_rows(const char * const * src, int64_t offset) {
    const auto row = [&](int i) { return _mm_loadu_si128((const __m128i *) (src[i] + offset)); };

    __m512i x = _mm512_castsi128_si512(row(0));
    x = _mm512_inserti32x4(x, row( 4), 1);
    x = _mm512_inserti32x4(x, row( 8), 2);
    x = _mm512_inserti32x4(x, row(12), 3);
    return (vec_f) x;
}

inline unsigned lanes_at_least(vec_f x, float t) {
    return _mm512_cmp_ps_mask((__m512) x, _mm512_set1_ps(t), _CMP_GE_OQ);
}

inline vec_f compress(vec_f x, unsigned lanes) {
    return (vec_f) _mm512_maskz_compress_ps((__mmask16) lanes, (__m512) x);
}

} // namespace

#include "ggml/top-keys/kernels/simd.h"
