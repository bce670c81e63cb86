// Vectors of VL floats from half-precision numbers.

#include "ggml/simd/vec.h"

#if defined(__F16C__) && VL >= 8
#define HAS_F16C 1
#include <immintrin.h>
#else
#define HAS_F16C 0
#endif

namespace {

typedef uint16_t vec_h_mem __attribute__((vector_size(VL*2), aligned(2), may_alias));

#if !HAS_F16C
// A product corrects the exponent's bias, also of subnormal numbers.
inline vec_f widen_half(vec_u bits) {
    const vec_f finite = (vec_f) ((bits & 0x7fff) << 13)*0x1p112f;
    const vec_u large  = (vec_u) ((vec_i) (bits & 0x7fff) >= 0x7c00) & 0x7f800000; // infinite or NaN
    return (vec_f) ((vec_u) finite | large | (bits & 0x8000) << 16);
}
#endif

inline vec_f load_half(const void * x) {
#if !HAS_F16C
    return widen_half(__builtin_convertvector(*(const vec_h_mem *) x, vec_u));
#elif VL == 16
    // without a mask GCC 12 warns of an uninitialised number
    return (vec_f) _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i *) x));
#else
    return (vec_f) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) x));
#endif
}

// Joined in registers: a load would wait for the stores of its parts.
inline vec_f widen_halves(const uint16_t * x) {
#if !HAS_F16C
    return load_half(x);
#else
    const __m128i a = _mm_setr_epi16(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]);
#if VL == 16
    const __m128i b = _mm_setr_epi16(x[8], x[9], x[10], x[11], x[12], x[13], x[14], x[15]);
    return (vec_f) _mm512_cvtph_ps(_mm256_set_m128i(b, a));
#else
    return (vec_f) _mm256_cvtph_ps(a);
#endif
#endif
}

inline float half_at(const void * x) {
    uint16_t h;
    __builtin_memcpy(&h, x, sizeof(h));
#if HAS_F16C
    return _cvtsh_ss(h);
#else
    return widen_half(h + vec_u {})[0];
#endif
}

} // namespace
