#include "ggml/simd/half.h"
#include "ggml/top-keys/kernels/kernel.h"

#include <immintrin.h>

namespace {

struct key_block {
    __m512i low [4]; // numbers 4*j to 4*j + 3 of each key
    __m512i high[4]; // 16 more

    explicit key_block(const char * src) {
        const __m512i mask = _mm512_set1_epi8(15);
        for (int j = 0; j < 4; ++j) {
            const __m512i bytes = _mm512_loadu_si512(src + j*VL*4);
            low [j] = _mm512_and_si512(bytes, mask);
            high[j] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
        }
    }

    vec_i dot(const h2o_index_query & q) const {
        __m512i sum_low  = _mm512_set1_epi32(q.offset);
        __m512i sum_high = _mm512_setzero_si512();
        for (int j = 0; j < 4; ++j) {
            int32_t a;
            int32_t b;
            __builtin_memcpy(&a, q.x + 4*j, sizeof(a));
            __builtin_memcpy(&b, q.x + 4*j + 16, sizeof(b));
            sum_low  = _mm512_dpbusd_epi32(sum_low,  low [j], _mm512_set1_epi32(a));
            sum_high = _mm512_dpbusd_epi32(sum_high, high[j], _mm512_set1_epi32(b));
        }
        return (vec_i) _mm512_add_epi32(sum_low, sum_high);
    }
};

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
