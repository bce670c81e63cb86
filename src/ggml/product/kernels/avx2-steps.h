// Steps by AVX2. It adds up two products of bytes in 16 bits, which cannot overflow with numbers of up to 6 bits.
// Numbers of 8 bits are widened to 16 bits.

namespace {

template <typename K>
constexpr bool WIDE = K::BITS == 8;

// steps 0 to 7 have the even bytes of a dword of wide numbers, steps 8 to 15 the odd bytes
template <typename K>
constexpr int N_STEPS = WIDE<K> ? 16 : 8;

template <typename K>
constexpr bool FIRST = K::ZERO != 0 && !WIDE<K>;

template <typename K>
constexpr int MAX_DIRECT = WIDE<K> ? 7 : 4;

template <typename K>
using steps_of = number_kind<K::BITS < 4 ? 4 : K::BITS, K::ZERO != 0, K::SCALES, K::MINS>;

// steps whose sums fit into 16 bits, with columns of -127 to 127
template <typename K>
constexpr int STEPS_AT_ONCE = min_of(K::BITS <= 4 ? 8 : K::BITS == 5 ? 4 : 2, 8/K::SCALES);

inline vec_i add_words(vec_i x) {
    return (vec_i) _mm256_madd_epi16((__m256i) x, _mm256_set1_epi16(1));
}

inline vec_i add_bytes(vec_i sum, vec_i x) {
    return sum + add_words((vec_i) _mm256_maddubs_epi16(_mm256_set1_epi8(1), (__m256i) x));
}

inline __m256i even_numbers(__m256i x) {
    return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
}

inline __m256i odd_numbers(__m256i x) {
    return _mm256_srai_epi16(x, 8);
}

template <typename K>
inline void widen_columns(const vec_f * x, char * block) {
    for (int j = 0; j < 8; ++j) {
        if (WIDE<K>) {
            _mm256_storeu_si256((__m256i *) (block + j*VL*4),       even_numbers((__m256i) x[j]));
            _mm256_storeu_si256((__m256i *) (block + (8 + j)*VL*4), odd_numbers((__m256i) x[j]));
        } else {
            store((float *) (block + j*VL*4), x[j]);
        }
    }
}

template <typename K>
inline void widen_rows(const bytes<1> * w, char * dst) {
    if (!WIDE<K>) {
        return interleave(w, dst);
    }
    bytes<1> even[ROWS];
    bytes<1> odd [ROWS];
    for (int i = 0; i < ROWS; ++i) {
        even[i] = (bytes<1>) even_numbers((__m256i) (w[i] ^ 128));
        odd [i] = (bytes<1>) odd_numbers((__m256i) (w[i] ^ 128));
    }
    interleave(even, dst);
    interleave(odd,  dst + 8*ROWS*4);
}

template <typename K, int N, int SPREAD, int H>
inline void add_products(const char * rows, const char * panels, int64_t panel_stride, vec_i (& sum)[N][ROWS/SPREAD]) {
    if constexpr (WIDE<K>) {
#pragma GCC unroll 1
        for (int j = 0; j < N_STEPS<K>; ++j) {
            for_step<N, SPREAD>(rows, panels, panel_stride, j, [&](int p, int r, vec_i w, vec_i x) {
                sum[p][r] += (vec_i) _mm256_madd_epi16((__m256i) w, (__m256i) x);
            });
        }
    } else {
#pragma GCC unroll 1
        for (int j = H*8/K::SCALES; j < (H + 1)*8/K::SCALES; j += STEPS_AT_ONCE<K>) {
            __m256i part[N][ROWS/SPREAD] = {};
#pragma GCC unroll 4
            for (int k = 0; k < STEPS_AT_ONCE<K>; ++k) {
                for_step<N, SPREAD>(rows, panels, panel_stride, j + k, [&](int p, int r, vec_i w, vec_i x) {
                    part[p][r] = _mm256_add_epi16(part[p][r], _mm256_maddubs_epi16((__m256i) w, (__m256i) x));
                });
            }
            for (int p = 0; p < N; ++p) {
                for (int r = 0; r < ROWS/SPREAD; ++r) {
                    sum[p][r] += add_words((vec_i) part[p][r]);
                }
            }
        }
    }
}

// The signs of wide numbers are moved to the column's numbers, so that the sum of two products fits into 16 bits.
template <typename K>
inline vec_i dot(vec_i first, vec_i w, vec_i x) {
    if constexpr (WIDE<K>) {
        const __m256i s = (__m256i) (w ^ (int) 0x80808080);
        return add_words((vec_i) _mm256_maddubs_epi16(_mm256_abs_epi8(s), _mm256_sign_epi8((__m256i) x, s)));
    } else {
        return first + add_words((vec_i) _mm256_maddubs_epi16((__m256i) w, (__m256i) x));
    }
}

} // namespace
