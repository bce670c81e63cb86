// Products with rows of Q8_0 in integers, in VL lanes. Q and the weights, which hold the scales of V, are rounded with a
// scale for each row; K and V are not rounded.

#include "ggml/attention/kernels/kernel.h"
#include "ggml/simd/half.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

constexpr int BYTES     = 32;  // of a block, whose scale stands before them
constexpr int BYTE_KEYS = 2*VL;
constexpr int MAX_KEYS  = H2O_ATTN_BLOCK_KEYS; // 32 bits hold sums of 512 products of 15 and 7 bits

// Rows are prefetched in groups, into the L2 cache.
constexpr int PREFETCH_GROUP = 8;
constexpr int CACHE_LINE     = 64; // bytes

typedef int32_t lane_mem __attribute__((may_alias));

inline vec_i load_ints(const float * x) {
    return *(const vec_i_mem *) x;
}

inline void store_ints(float * x, vec_i v) {
    *(vec_i_mem *) x = v;
}

inline int64_t round_up(int64_t x, int64_t step) {
    return (x + step - 1)/step*step;
}

inline vec_f to_floats(vec_i x) {
    return __builtin_convertvector(x, vec_f);
}

// To the nearest integer: in the low 16 bits of each lane.
inline vec_i round_to_int(vec_f x) {
    return (vec_i) (x + 12582912.0f); // 1.5*2^23
}

} // namespace

#if (VL == 16 && defined(__AVX512VNNI__)) || (VL == 8 && defined(__AVXVNNI__))
#include "ggml/attention/kernels/quads.h"
#else
#include "ggml/attention/kernels/pairs.h"
#endif

namespace {

// What makes the largest of each row's n numbers the largest integer, and what undoes it: NaN if a number is not finite.
// As integers, the bits of such ones are the largest.
template <int M, typename X>
inline void find_scales(int64_t n, const X & x, float largest_int, float (& scale)[M], float (& back)[M]) {
    vec_i most[M] = {};
    for (int64_t i = 0; i < n; i += VL) {
        for (int r = 0; r < M; ++r) {
            const vec_i bits = (vec_i) x(r, i) & 0x7fffffff;
            most[r] = bits > most[r] ? bits : most[r];
        }
    }
    for (int r = 0; r < M; ++r) {
        const float largest = fold((vec_f) most[r], [](vec_f a, vec_f b) { return (vec_i) a > (vec_i) b ? a : b; })[0];
        scale[r] = largest > 0.0f ? largest_int/largest : 0.0f;
        back [r] = largest/largest_int + largest*0.0f;
    }
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

// Rows from the key-th to the end, in groups, of the block that is attended to next, which has n. Both lines of a pair at
// once: one line for each row, then the other, took twice as long on an AMD EPYC.
[[gnu::noinline]] inline void prefetch_rows(const h2o_attn_source & x, int64_t key, int64_t end, int64_t n) {
    __asm__ volatile (""); // GCC leaves out a call that has no effect
    for (; key < min_of(end, n); key += PREFETCH_GROUP) {
        for (int64_t i = 0; i < x.size; i += 2*CACHE_LINE) {
            for (int c = 0; c < PREFETCH_GROUP; ++c) {
                const char * row = row_of(x, min_of(key + c, n - 1));
                __builtin_prefetch(row + i, 0, 2);
                __builtin_prefetch(row + min_of(i + CACHE_LINE, x.size - 1), 0, 2);
            }
        }
    }
}

// Each query becomes integers, then what undoes their scale, in its place.
void pack_byte_q(float * q, int64_t n_rows, int64_t d) {
    for (const float * end = q + n_rows*d; q < end; q += d) {
        float scale[1];
        float back[1];
        find_scales(d, [&](int, int64_t i) { return load(q + i); }, LARGEST_Q, scale, back);
        put_query(q, d, scale[0]);
        q[d/2] = back[0];
    }
}

// floats of VL packed keys
constexpr int64_t byte_panel(int64_t d) {
    return d/BYTES*(1 + BYTES/PER_LANE)*VL;
}

// VL keys: for each block the scales, then a lane's numbers of each key as queries have them
inline void pack_byte_keys(const h2o_attn_source & x, int64_t key, int64_t n, float * dst) {
    constexpr int N = VL < 8 ? VL : 8;

    const char * row[VL];
    find_rows<VL>(x, key, n, row);

    for (int64_t byte = 0; byte < x.size; byte += 2 + BYTES) {
        widen_scales(row, byte, dst);
        dst += VL;
        for (int h = 0; h < BYTES; h += 4*N) {
            vec_f block[N];
#pragma GCC unroll 8 // else GCC 12 copies the rows by halves, and loads of whole ones wait for both
            for (int c = 0; c < N; ++c) {
                const char * bytes = row[c] + byte + 2 + h;
#if VL == 16
                block[c] = (vec_f) _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) bytes)),
                        _mm256_loadu_si256((const __m256i *) (row[c + N] + byte + 2 + h)), 1);
#else
                block[c] = *(const vec_f_bytes *) bytes;
#endif
            }
            transpose<N>(block);
            for (int i = 0; i < N; ++i) {
                dst += put_keys(dst, (vec_i) block[i]);
            }
        }
    }
}

// BYTE_KEYS values of at most MAX_KEYS: first the scales [block][MAX_KEYS], then a lane's numbers of each column [d]
inline void pack_byte_values(const h2o_attn_source & x, int64_t key, int64_t n, float * v) {
    const char * row[BYTE_KEYS];
    find_rows<BYTE_KEYS>(x, key, n, row);

    float * dst = v + x.d/BYTES*MAX_KEYS + key/PER_LANE*x.d;
    for (int64_t byte = 0; byte < x.size; byte += 2 + BYTES, v += MAX_KEYS) {
        widen_scales(row,      byte, v + key);
        widen_scales(row + VL, byte, v + key + VL);
    }
    for (int i = 0; i < BYTE_KEYS/PER_LANE; ++i) {
        for (int64_t byte = 2; byte < x.size; byte += 2 + BYTES, dst += BYTES) {
            put_values(dst,      row, i, byte);
            put_values(dst + 16, row, i, byte + 16);
        }
    }
}

// Adds products of M rows of n lanes with two vectors b, the next lane's step floats further.
template <int M, typename F>
inline void multiply_lanes(const float * a, int64_t lda, const float * b, int64_t step, int64_t second, int64_t n,
        const F & add, vec_i (& sum)[M][2]) {
#pragma GCC unroll 1 // else GCC keeps all products before it adds them
    for (int64_t p = 0; p < n; ++p, b += step) {
        const vec_i x[] = { load_ints(b), load_ints(b + second) };
        for (int r = 0; r < M; ++r) {
            const vec_i y = ((const lane_mem *) a)[r*lda + p] + vec_i {};
            sum[r][0] = add(sum[r][0], x[0], y);
            sum[r][1] = add(sum[r][1], x[1], y);
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
        if (row == 0) {
            prefetch_rows(t.next_k, key, key + BYTE_KEYS, t.n_next);
        }
        vec_f sum[M][2] = {};
        for (int64_t i = 0; i < d/BYTES; ++i) {
            const float * panel = k + i*(1 + BYTES/PER_LANE)*VL;

            vec_i of_block[M][2];
            for (int r = 0; r < M; ++r) {
                of_block[r][0] = of_block[r][1] = first_sum(q + r*d, d, i);
            }
            multiply_lanes<M>(q + i*BYTES/PER_LANE, d, panel + VL, VL, next, BYTES/PER_LANE, add_products, of_block);
            for (int r = 0; r < M; ++r) {
                sum[r][0] += to_floats(of_block[r][0])*load(panel);
                sum[r][1] += to_floats(of_block[r][1])*load(panel + next);
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
        find_scales(end, scaled, LARGEST_WEIGHT, scale, back);

        float integers[M][MAX_KEYS/PER_LANE];
        for (int64_t key = 0; key < end; key += BYTE_KEYS) {
            if (row == 0 && i == 0) {
                prefetch_rows(t.next_v, key, key + BYTE_KEYS, t.n_next);
            }
            for (int r = 0; r < M; ++r) {
                put_weights(integers[r] + key/PER_LANE, round_to_int(scaled(r, key)*scale[r]),
                        round_to_int(scaled(r, key + VL)*scale[r]));
            }
        }
        for (int c = i; c < i + BYTES; c += 2*VL) {
            vec_i sum[M][2] = {};
            multiply_lanes<M>(integers[0], MAX_KEYS/PER_LANE, values + c, d, VL, round_up(end, BYTE_KEYS)/PER_LANE,
                    [](vec_i sum, vec_i v, vec_i weights) { return add_products(sum, weights, v); }, sum);
            for (int r = 0; r < M; ++r) {
                for (int j = 0; j < 2; ++j) {
                    float * dst = o + r*d + c + j*VL;
                    store(dst, load(dst) + to_floats(sum[r][j])*back[r]);
                }
            }
        }
    }
}

} // namespace
