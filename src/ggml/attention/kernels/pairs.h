// Pairs of 16 bits in each of VL lanes.

namespace {

constexpr int   PER_LANE       = 2;
constexpr float LARGEST_Q      = 32767.0f;
constexpr float LARGEST_WEIGHT = 32767.0f;

typedef int16_t vec_s __attribute__((vector_size(VL*4)));

// sum + a*b of both numbers of each lane
inline vec_i add_products(vec_i sum, vec_i a, vec_i b) {
#if VL == 16 && defined(__AVX512BW__)
    return sum + (vec_i) _mm512_madd_epi16((__m512i) a, (__m512i) b);
#elif VL == 8 && defined(__AVX2__)
    return sum + (vec_i) _mm256_madd_epi16((__m256i) a, (__m256i) b);
#elif VL == 4 && defined(__SSE2__)
    return sum + (vec_i) _mm_madd_epi16((__m128i) a, (__m128i) b);
#else
    return sum + (a << 16 >> 16)*(b << 16 >> 16) + (a >> 16)*(b >> 16);
#endif
}

// The numbers 0 and 2, 1 and 3, 4 and 6, ... of a query become pairs, in their place.
inline void put_query(float * q, int64_t d, float scale) {
    lane_mem * pairs = (lane_mem *) q;
    for (int64_t i = 0; i < d; i += VL) {
        const vec_i x = round_to_int(load(q + i)*scale);
        for (int j = 0; j < VL; j += 4) {
            for (int odd = 0; odd < 2; ++odd) {
                *pairs++ = (x[j + odd] & 0xffff) | (uint32_t) x[j + odd + 2] << 16;
            }
        }
    }
}

// The number at which sums of a query's block with keys begin.
inline vec_i first_sum(const float *, int64_t, int64_t) {
    return vec_i {};
}

// Stores four bytes of each of VL keys. Returns how many floats it wrote.
inline int put_keys(float * dst, vec_i bytes) {
    store_ints(dst,      (vec_i) ((vec_s) bytes << 8 >> 8));
    store_ints(dst + VL, (vec_i) ((vec_s) bytes >> 8));
    return 2*VL;
}

// Stores 16 columns of the i-th and the (i + VL)-th of 2*VL values: a lane has a number of each.
inline void put_values(float * dst, const char * const * row, int i, int64_t byte) {
    const char * a = row[i]      + byte;
    const char * b = row[i + VL] + byte;
#if defined(__AVX2__)
    const __m128i x = _mm_loadu_si128((const __m128i *) a);
    const __m128i y = _mm_loadu_si128((const __m128i *) b);
    _mm256_storeu_si256((__m256i *) dst,       _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(x, y)));
    _mm256_storeu_si256((__m256i *) (dst + 8), _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(x, y)));
#else
    for (int j = 0; j < 16; ++j) {
        const int16_t pair[] = { (int8_t) a[j], (int8_t) b[j] };
        __builtin_memcpy(dst + j, pair, sizeof(pair));
    }
#endif
}

// weights of 2*VL values
inline void put_weights(float * dst, vec_i a, vec_i b) {
    store_ints(dst, (a & 0xffff) | (vec_i) ((vec_u) b << 16));
}

} // namespace
