// What simd.h computes with instructions of the CPU: vectors of VL floats.

#include "ggml/simd/half.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

// add_products adds products of 4 numbers of each key with 4 of the query, signed bytes, to partial sums; sums_of has the
// sums of two vectors of these, each after 4 products.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
inline vec_i add_products(vec_i sum, vec_i keys, vec_i q) {
#if VL == 16
    return (vec_i) _mm512_dpbusd_epi32((__m512i) sum, (__m512i) keys, (__m512i) q);
#else
    return (vec_i) _mm256_dpbusd_avx_epi32((__m256i) sum, (__m256i) keys, (__m256i) q);
#endif
}

inline vec_i sums_of(vec_i a, vec_i b) {
    return a + b;
}
#elif defined(__AVX2__)
// Partial sums have 16 bits: 16*15*127 fits.
inline vec_i add_products(vec_i sum, vec_i keys, vec_i q) {
    return (vec_i) _mm256_add_epi16((__m256i) sum, _mm256_maddubs_epi16((__m256i) keys, (__m256i) q));
}

inline vec_i sums_of(vec_i a, vec_i b) {
    return (vec_i) _mm256_madd_epi16(_mm256_add_epi16((__m256i) a, (__m256i) b), _mm256_set1_epi16(1));
}
#else
typedef int16_t vec_s __attribute__((vector_size(VL*4)));

// Even numbers are added up in one half of 32 bits, odd ones likewise: 16*15*127 fits into 16 bits.
inline vec_i add_products(vec_i sum, vec_i keys, vec_i q) {
    const vec_s k = (vec_s) keys;
    const vec_s x = (vec_s) q;
    return (vec_i) ((vec_s) sum + (k & 15)*((x << 8) >> 8) + (k >> 8)*(x >> 8));
}

inline vec_i sums_of(vec_i a, vec_i b) {
    const vec_i pairs = (vec_i) ((vec_s) a + (vec_s) b);
    return ((vec_i) ((vec_u) pairs << 16) >> 16) + (pairs >> 16);
}
#endif

// 16 bytes of every 4th of VL rows, side by side
inline vec_f load_rows(const char * const * src, int64_t offset) {
#if VL == 4
    return *(const vec_f_bytes *) (src[0] + offset);
#else
    const auto row = [&](int i) { return _mm_loadu_si128((const __m128i *) (src[i] + offset)); };

    const __m256i x = _mm256_set_m128i(row(4), row(0));
#if VL == 8
    return (vec_f) x;
#else
    return (vec_f) _mm512_inserti64x4(_mm512_castsi256_si512(x), _mm256_set_m128i(row(12), row(8)), 1);
#endif
#endif
}

// the lanes that are t or more, as bits
inline unsigned lanes_at_least(vec_f x, float t) {
#if VL == 16
    return _mm512_cmp_ps_mask((__m512) x, _mm512_set1_ps(t), _CMP_GE_OQ);
#elif VL == 8
    return _mm256_movemask_ps((__m256) (x >= t));
#else
    const vec_i is_true = x >= t;

    unsigned lanes = 0;
    for (int j = 0; j < VL; ++j) {
        lanes |= (is_true[j] & 1u) << j;
    }
    return lanes;
#endif
}

#if VL == 8
// for each set of lanes their numbers, a byte each
struct lane_table {
    uint64_t lanes[256];
};

constexpr lane_table make_lane_table() {
    lane_table table = {};
    for (unsigned set = 0; set < 256; ++set) {
        for (int lane = 0, n = 0; lane < VL; ++lane) {
            if (set >> lane & 1) {
                table.lanes[set] |= (uint64_t) lane << 8*n++;
            }
        }
    }
    return table;
}

constexpr lane_table LANES = make_lane_table();
#endif

// these lanes, one after another; the others may be anything
inline vec_f compress(vec_f x, unsigned lanes) {
#if VL == 16
    return (vec_f) _mm512_maskz_compress_ps((__mmask16) lanes, (__m512) x);
#elif VL == 8
    return (vec_f) _mm256_permutevar8x32_ps((__m256) x,
            _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long) LANES.lanes[lanes])));
#else
    vec_f y = x;
    for (int j = 0, n = 0; j < VL; ++j) {
        y[n] = x[j];
        n += lanes >> j & 1;
    }
    return y;
#endif
}

} // namespace
