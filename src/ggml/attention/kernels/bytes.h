// Products with rows of Q8_0 in integers: pairs of 16 bits by pairs of 16 bits, in VL lanes. Q and the weights, which
// hold the scales of V, are rounded to 16 bits with a scale for each row; K and V are not rounded.

#include "ggml/attention/kernels/kernel.h"
#include "ggml/simd/half.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

constexpr int BYTES      = 32;  // of a block, whose scale stands before them
constexpr int BYTE_KEYS  = 2*VL;
constexpr int MAX_KEYS   = H2O_ATTN_BLOCK_KEYS; // 32 bits hold sums of 512 products of 15 and 7 bits

typedef int16_t vec_s __attribute__((vector_size(VL*4)));
typedef int32_t lane_mem __attribute__((may_alias));

inline vec_i load_pairs(const float * x) {
    return *(const vec_i_mem *) x;
}

inline void store_pairs(float * x, vec_i v) {
    *(vec_i_mem *) x = v;
}

inline vec_i pair_of(vec_i low, vec_i high) {
    return (low & 0xffff) | (vec_i) ((vec_u) high << 16);
}

// sum + a*b of both numbers of each pair
inline vec_i add_products(vec_i sum, vec_i a, vec_i b) {
#if VL == 16 && defined(__AVX512VNNI__)
    return (vec_i) _mm512_dpwssd_epi32((__m512i) sum, (__m512i) a, (__m512i) b);
#elif VL == 8 && defined(__AVXVNNI__)
    return (vec_i) _mm256_dpwssd_avx_epi32((__m256i) sum, (__m256i) a, (__m256i) b);
#elif VL == 16 && defined(__AVX512BW__)
    return sum + (vec_i) _mm512_madd_epi16((__m512i) a, (__m512i) b);
#elif VL == 8 && defined(__AVX2__)
    return sum + (vec_i) _mm256_madd_epi16((__m256i) a, (__m256i) b);
#elif VL == 4 && defined(__SSE2__)
    return sum + (vec_i) _mm_madd_epi16((__m128i) a, (__m128i) b);
#else
    return sum + (a << 16 >> 16)*(b << 16 >> 16) + (a >> 16)*(b >> 16);
#endif
}

// Rounded to the nearest integer: 16 bits in the low half of each lane.
inline vec_i round_to_pairs(vec_f x) {
    return (vec_i) (x + 12582912.0f); // 1.5*2^23
}

// What makes the largest of each row's n numbers 32,767, and what undoes it: NaN if a number is not finite. As integers,
// the bits of such ones are the largest.
template <int M, typename X>
inline void find_scales(int64_t n, const X & x, float (& scale)[M], float (& back)[M]) {
    vec_i most[M] = {};
    for (int64_t i = 0; i < n; i += VL) {
        for (int r = 0; r < M; ++r) {
            const vec_i bits = (vec_i) x(r, i) & 0x7fffffff;
            most[r] = bits > most[r] ? bits : most[r];
        }
    }
    for (int r = 0; r < M; ++r) {
        const float largest = fold((vec_f) most[r], [](vec_f a, vec_f b) { return (vec_i) a > (vec_i) b ? a : b; })[0];
        scale[r] = largest > 0.0f ? 32767.0f/largest : 0.0f;
        back [r] = largest/32767.0f + largest*0.0f;
    }
}

// 32 numbers of 16 bits: a and b take turns
inline void interleave(const char * a, const char * b, float * dst) {
#if defined(__AVX2__)
    const __m128i x = _mm_loadu_si128((const __m128i *) a);
    const __m128i y = _mm_loadu_si128((const __m128i *) b);
    _mm256_storeu_si256((__m256i *) dst,       _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(x, y)));
    _mm256_storeu_si256((__m256i *) (dst + 8), _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(x, y)));
#else
    for (int i = 0; i < 16; ++i) {
        const int16_t pair[] = { (int8_t) a[i], (int8_t) b[i] };
        __builtin_memcpy(dst + i, pair, sizeof(pair));
    }
#endif
}

// Scales of VL rows' blocks, the byte-th on.
inline void widen_scales(const char * const * row, int64_t byte, float * dst) {
    uint16_t scales[VL];
    for (int i = 0; i < VL; ++i) {
        __builtin_memcpy(&scales[i], row[i] + byte, sizeof(scales[i]));
    }
    store(dst, widen_halves(scales));
}

inline const char * row_of(const h2o_attn_source & x, int64_t key) {
    return x.data + (x.rows ? x.rows[key] : key)*x.stride;
}

// N rows from the key-th of n on; after the last one it again
template <int N>
inline void find_rows(const h2o_attn_source & x, int64_t key, int64_t n, const char ** row) {
    for (int c = 0; c < N; ++c) {
        row[c] = row_of(x, min_of(key + c, n - 1));
    }
}

// the lanes START, START + 1, START + 4, START + 5, ...
template <int START, int... J>
inline vec_i every_other_two(vec_f a, vec_f b, indices<J...>) {
    return (vec_i) shuffle<(START + J/2*4 + J%2)...>(a, b);
}

template <int START>
inline vec_i every_other_two(vec_f a, vec_f b) {
    return every_other_two<START>(a, b, typename make_indices<VL>::type());
}

// Each query becomes pairs, of the numbers 0 and 2, 1 and 3, 4 and 6, ..., then what undoes their scale, in its place.
void pack_byte_q(float * q, int64_t n_rows, int64_t d) {
    for (const float * end = q + n_rows*d; q < end; q += d) {
        float scale[1];
        float back[1];
        find_scales(d, [&](int, int64_t i) { return load(q + i); }, scale, back);
        for (int64_t i = 0; i < d; i += 2*VL) {
            const vec_f a = (vec_f) round_to_pairs(load(q + i)*scale[0]);
            const vec_f b = (vec_f) round_to_pairs(load(q + i + VL)*scale[0]);
            store_pairs(q + i/2, pair_of(every_other_two<0>(a, b), every_other_two<2>(a, b)));
        }
        q[d/2] = back[0];
    }
}

// floats of VL packed keys
constexpr int64_t byte_panel(int64_t d) {
    return d/BYTES*(1 + BYTES/2)*VL;
}

// VL keys: for each block the scales, then pairs of each key as queries have them
inline void pack_byte_keys(const h2o_attn_source & x, int64_t key, int64_t n, float * dst) {
    constexpr int N = VL < 8 ? VL : 8;

    const char * row[VL];
    find_rows<VL>(x, key, n, row);

    for (int64_t byte = 0; byte < x.size; byte += 2 + BYTES) {
        widen_scales(row, byte, dst);
        dst += VL;
        for (int h = 0; h < BYTES; h += 4*N) {
            vec_f block[N];
            for (int c = 0; c < N; ++c) {
                const char * bytes = row[c] + byte + 2 + h;
#if VL == 16
                block[c] = (vec_f) _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) bytes)),
                        _mm256_loadu_si256((const __m256i *) (row[c + N] + byte + 2 + h)), 1);
#else
                __builtin_memcpy(&block[c], bytes, sizeof(block[c]));
#endif
            }
            transpose<N>(block);
            for (int i = 0; i < N; ++i, dst += 2*VL) {
                store_pairs(dst,      (vec_i) ((vec_s) block[i] << 8 >> 8));
                store_pairs(dst + VL, (vec_i) ((vec_s) block[i] >> 8));
            }
        }
    }
}

// BYTE_KEYS values of at most MAX_KEYS: first the scales [block][MAX_KEYS], then pairs of the i-th and (i + VL)-th one [d]
inline void pack_byte_values(const h2o_attn_source & x, int64_t key, int64_t n, float * v) {
    const char * row[BYTE_KEYS];
    find_rows<BYTE_KEYS>(x, key, n, row);

    float * dst = v + x.d/BYTES*MAX_KEYS + key/2*x.d;
    for (int64_t byte = 0; byte < x.size; byte += 2 + BYTES, v += MAX_KEYS) {
        widen_scales(row,      byte, v + key);
        widen_scales(row + VL, byte, v + key + VL);
    }
    for (int i = 0; i < VL; ++i) {
        for (int64_t byte = 2; byte < x.size; byte += 2 + BYTES, dst += BYTES) {
            interleave(row[i] + byte,      row[i + VL] + byte,      dst);
            interleave(row[i] + byte + 16, row[i + VL] + byte + 16, dst + 16);
        }
    }
}

// Products of M rows of n pairs with two vectors b, the next pair's step floats further: as floats.
template <int M>
inline void multiply_pairs(const float * a, int64_t lda, const float * b, int64_t step, int64_t second, int64_t n,
        vec_f (& res)[M][2]) {
    vec_i sum[M][2] = {};
#pragma GCC unroll 1 // else GCC keeps all products before it adds them
    for (int64_t p = 0; p < n; ++p, b += step) {
        const vec_i x[] = { load_pairs(b), load_pairs(b + second) };
        for (int r = 0; r < M; ++r) {
            const vec_i y = ((const lane_mem *) a)[r*lda + p] + vec_i {};
            sum[r][0] = add_products(sum[r][0], x[0], y);
            sum[r][1] = add_products(sum[r][1], x[1], y);
        }
    }
    for (int r = 0; r < M; ++r) {
        for (int j = 0; j < 2; ++j) {
            res[r][j] = __builtin_convertvector(sum[r][j], vec_f);
        }
    }
}

// Both functions are for M rows from the row-th on. Inlined together they would not have registers enough.

// logits = q*k of the keys to the end, rounded up
template <int M>
[[gnu::noinline]] void multiply_byte_keys(const h2o_attn_tile & t, int row, int64_t end) {
    const int64_t d      = t.d_k;
    const int64_t ld     = t.ld;
    const float * q      = t.q + row*d;
    const float * k      = t.packed_k;
    float *       logits = t.logits + row*ld;

    const int64_t next = byte_panel(d);
    for (int64_t key = 0; key < end; key += BYTE_KEYS, k += 2*next) {
        vec_f sum[M][2] = {};
        for (int64_t i = 0; i < d/BYTES; ++i) {
            const float * panel = k + i*(1 + BYTES/2)*VL;

            vec_f of_block[M][2];
            multiply_pairs<M>(q + i*BYTES/2, d, panel + VL, VL, next, BYTES/2, of_block);
            for (int r = 0; r < M; ++r) {
                sum[r][0] += of_block[r][0]*load(panel);
                sum[r][1] += of_block[r][1]*load(panel + next);
            }
        }
        for (int r = 0; r < M; ++r) {
            const float back = q[r*d + d/2];
            store(logits + r*ld + key,      sum[r][0]*back);
            store(logits + r*ld + key + VL, sum[r][1]*back);
        }
    }
}

// o += weights*v of the keys to the end, a multiple of VL
template <int M>
[[gnu::noinline]] void multiply_byte_values(const h2o_attn_tile & t, int row, int64_t end) {
    const int64_t d       = t.d_v;
    const int64_t ld      = t.ld;
    const float * weights = t.logits + row*ld;
    const float * scales  = t.packed_v;
    const float * values  = scales + d/BYTES*MAX_KEYS;
    float *       o       = t.o + row*d;

    for (int64_t i = 0; i < d; i += BYTES, scales += MAX_KEYS) {
        const auto scaled = [&](int r, int64_t key) {
            return key < end ? load(weights + r*ld + key)*load(scales + key) : vec_f {};
        };
        float scale[M];
        float back[M];
        find_scales(end, scaled, scale, back);

        float pairs[M][MAX_KEYS/2];
        for (int64_t key = 0; key < end; key += BYTE_KEYS) {
            for (int r = 0; r < M; ++r) {
                store_pairs(pairs[r] + key/2, pair_of(round_to_pairs(scaled(r, key)*scale[r]),
                        round_to_pairs(scaled(r, key + VL)*scale[r])));
            }
        }
        for (int c = i; c < i + BYTES; c += 2*VL) {
            vec_f sum[M][2];
            multiply_pairs<M>(pairs[0], MAX_KEYS/2, values + c, d, VL, (end + BYTE_KEYS - 1)/BYTE_KEYS*VL, sum);
            for (int r = 0; r < M; ++r) {
                for (int j = 0; j < 2; ++j) {
                    float * dst = o + r*d + c + j*VL;
                    store(dst, load(dst) + sum[r][j]*back[r]);
                }
            }
        }
    }
}

} // namespace
