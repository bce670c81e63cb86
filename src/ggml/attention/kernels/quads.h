// Quads of 8 bits in each of VL lanes, where a CPU adds four products at once. One of the factors has no sign: keys, to
// which 128 is added, and weights.

namespace {

constexpr int   PER_LANE       = 4;
constexpr float LARGEST_Q      = 127.0f;
constexpr float LARGEST_WEIGHT = 255.0f;

// sum + a*b of the four numbers of each lane; a's have no sign
inline vec_i add_products(vec_i sum, vec_i a, vec_i b) {
#if VL == 16
    return (vec_i) _mm512_dpbusd_epi32((__m512i) sum, (__m512i) a, (__m512i) b);
#else
    return (vec_i) _mm256_dpbusd_avx_epi32((__m256i) sum, (__m256i) a, (__m256i) b);
#endif
}

// the low byte of each lane
inline void put_bytes(void * dst, vec_i x) {
#if VL == 16
    _mm_storeu_si128((__m128i *) dst, _mm512_cvtepi32_epi8((__m512i) x));
#else
    const __m256i in_halves = _mm256_shuffle_epi8((__m256i) x, _mm256_set1_epi32(0x0c080400));
    _mm_storel_epi64((__m128i *) dst, _mm_unpacklo_epi32(_mm256_castsi256_si128(in_halves),
            _mm256_extracti128_si256(in_halves, 1)));
#endif
}

// A query becomes bytes in its place. For each block follows -128 times the sum of its bytes: keys have 128 added.
inline void put_query(float * q, int64_t d, float scale) {
    int8_t * bytes = (int8_t *) q;
    for (int64_t i = 0; i < d; i += VL) {
        put_bytes(bytes + i, round_to_int(load(q + i)*scale));
    }
    for (int64_t i = 0; i < d; i += BYTES) {
        int32_t sum = 0;
        for (int64_t j = i; j < i + BYTES; ++j) {
            sum -= 128*bytes[j];
        }
        __builtin_memcpy(q + d/PER_LANE + i/BYTES, &sum, sizeof(sum));
    }
}

// The number at which sums of a query's block with keys begin.
inline vec_i first_sum(const float * q, int64_t d, int64_t block) {
    return ((const lane_mem *) q)[d/PER_LANE + block] + vec_i {};
}

// Stores four bytes of each of VL keys. Returns how many floats it wrote.
inline int put_keys(float * dst, vec_i bytes) {
    store_ints(dst, bytes ^ (int32_t) 0x80808080);
    return VL;
}

// Stores 16 columns of the i-th four values: a lane has a byte of each.
inline void put_values(float * dst, const char * const * row, int i, int64_t byte) {
    const auto load_row = [&](int j) { return _mm_loadu_si128((const __m128i *) (row[4*i + j] + byte)); };
    const auto put      = [&](int j, __m128i x) { _mm_storeu_si128((__m128i *) dst + j, x); };

    const __m128i low_ab  = _mm_unpacklo_epi8(load_row(0), load_row(1));
    const __m128i high_ab = _mm_unpackhi_epi8(load_row(0), load_row(1));
    const __m128i low_cd  = _mm_unpacklo_epi8(load_row(2), load_row(3));
    const __m128i high_cd = _mm_unpackhi_epi8(load_row(2), load_row(3));
    put(0, _mm_unpacklo_epi16(low_ab,  low_cd));
    put(1, _mm_unpackhi_epi16(low_ab,  low_cd));
    put(2, _mm_unpacklo_epi16(high_ab, high_cd));
    put(3, _mm_unpackhi_epi16(high_ab, high_cd));
}

// weights of 2*VL values
inline void put_weights(float * dst, vec_i a, vec_i b) {
    put_bytes(dst,        a);
    put_bytes(dst + VL/4, b);
}

} // namespace
