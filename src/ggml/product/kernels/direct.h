#pragma once

// Products with few columns, as of generated tokens: rows are read where they lie, once, and are to come as fast as memory gives them.

#include "ggml/product/kernels/steps.h"

namespace {

constexpr int AT_ONCE = VL/8; // blocks of a vector

// A packed column: all numbers, what the sums of 4 of them start with, scales, and what minimums are multiplied by. Blocks that are
// missing in a unit of 8 are zeros.
template <typename K>
struct column_layout {
    int64_t n_blocks;

    explicit column_layout(int64_t n) : n_blocks((n + 14)/8*8) {} // the last unit may start with the last block

    int64_t first () const { return n_blocks*32; }
    int64_t scales() const { return first() + (FIRST<K> ? n_blocks*32 : 0); }
    int64_t sums  () const { return scales() + n_blocks*4; }
    int64_t size  () const { return sums() + (K::MINS ? n_blocks*4*K::SCALES : 0); }
};

template <typename K>
int64_t column_bytes(int64_t n_blocks) {
    return column_layout<K>(n_blocks).size();
}

// sums of 4 signed bytes, times `by`
inline void put_sums(const char * numbers, int by, char * dst) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), _mm256_loadu_si256((const __m256i *) numbers));
    _mm256_storeu_si256((__m256i *) dst, _mm256_madd_epi16(pairs, _mm256_set1_epi16(by)));
}

template <typename K>
void pack_column(const char * column, int64_t first, int64_t n, int64_t n_blocks, char * dst) {
    const column_layout<K> at(n_blocks);

    if (first + n == n_blocks) {
        for (int64_t b = n_blocks; b < at.n_blocks; ++b) {
            __builtin_memset(dst + b*32, 0, 32);
            if (FIRST<K>) {
                __builtin_memset(dst + at.first() + b*32, 0, 32);
            }
            __builtin_memset(dst + at.scales() + b*4, 0, 4);
            if (K::MINS) {
                __builtin_memset(dst + at.sums() + b*4*K::SCALES, 0, 4*K::SCALES);
            }
        }
    }

    for (int64_t b = first; b < first + n; ++b, column += H2O_PRODUCT_BLOCK_BYTES) {
        const float scale = half_at(column);
        __builtin_memcpy(dst + b*32, column + 2, 32);
        __builtin_memcpy(dst + at.scales() + b*4, &scale, 4);
        if (FIRST<K>) {
            put_sums(column + 2, -K::ZERO, dst + at.first() + b*32);
        }
        if (K::MINS) {
            int32_t part[8];
            put_sums(column + 2, 1, (char *) part);
            for (int h = 0; h < K::SCALES; ++h) {
                int sum = 0;
                for (int i = h*8/K::SCALES; i < (h + 1)*8/K::SCALES; ++i) {
                    sum += part[i];
                }
                const float x = scale*sum;
                __builtin_memcpy(dst + at.sums() + (b*K::SCALES + h)*4, &x, 4);
            }
        }
    }
}

// Of scales for 8 blocks, each in all lanes of its numbers, for the j-th vector of blocks.
template <int SCALES>
inline vec_f spread_scales(const floats * s, int j) {
#if VL == 16
    if constexpr (SCALES == 2) {
        const vec_i from = vec_i { 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3 } + 4*j;
        const __m512 all = _mm512_insertf32x8(_mm512_castps256_ps512((__m256) s[0]), (__m256) s[1], 1);
        return (vec_f) _mm512_permutexvar_ps((__m512i) from, all);
    } else {
        const vec_i from = vec_i { 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1 } + 2*j;
        return (vec_f) _mm512_permutexvar_ps((__m512i) from, _mm512_castps256_ps512((__m256) s[0]));
    }
#else
    if constexpr (SCALES == 2) {
        const vec_i from = vec_i { 0, 0, 0, 0, 1, 1, 1, 1 } + j%4*2;
        return (vec_f) _mm256_permutevar8x32_ps((__m256) s[j/4], (__m256i) from);
    } else {
        return (vec_f) _mm256_permutevar8x32_ps((__m256) s[0], _mm256_set1_epi32(j));
    }
#endif
}

// each of 8 scales once, or twice side by side
template <int SCALES>
inline void load_scales(const char * src, floats * s) {
    const __m256 x = _mm256_loadu_ps((const float *) src);
    if constexpr (SCALES == 2) {
        s[0] = (floats) _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
        s[1] = (floats) _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
    } else {
        s[0] = (floats) x;
    }
}

// The j-th vector of a row's numbers, zeros where block N and those after it are.
template <typename T, int N>
inline vec_i load_numbers(const char * row, int j) {
#if VL == 16
    if constexpr (N == 1) {
        return (vec_i) _mm512_zextsi256_si512((__m256i) T::template numbers<1>(row, j));
    }
#endif
    return (vec_i) T::template numbers<AT_ONCE>(row, j*AT_ONCE);
}

// A row's sums by C columns, and what the minimums add.
template <int C>
struct row_sums {
    vec_f  sum[C][2]; // of vectors in turn
    floats min[C];
};

// N blocks of a row, from a unit's start, and of the columns.
template <typename T, int N, int C>
inline void add_unit(const char * row, const h2o_product_direct & d, int64_t b, row_sums<C> & sums) {
    const column_layout<typename T::kind> at(d.n_blocks);

    floats scale[C][T::SCALES];
    floats s[T::SCALES];
    floats m[T::SCALES];
    T::template scales<N>(row, s, m);
    for (int c = 0; c < C; ++c) {
        const char * column = d.columns + c*d.column_stride;
        floats x[T::SCALES];
        load_scales<T::SCALES>(column + at.scales() + b*4, x);
        for (int h = 0; h < T::SCALES; ++h) {
            scale[c][h] = s[h]*x[h];
            if (T::MINS) {
                sums.min[c] += m[h]*(floats) _mm256_loadu_ps((const float *) (column + at.sums() + b*4*T::SCALES) + 8*h);
            }
        }
    }

#pragma GCC unroll 8
    for (int j = 0; j < (N + AT_ONCE - 1)/AT_ONCE; ++j) {
        const vec_i w = load_numbers<T, N>(row, j);
        for (int c = 0; c < C; ++c) {
            const char * numbers = d.columns + c*d.column_stride + (b + j*AT_ONCE)*32;
            const vec_i  x       = *(const vec_i_mem *) numbers;
            const vec_i  first   = FIRST<typename T::kind> ? *(const vec_i_mem *) (numbers + at.first()) : vec_i {};
            const vec_f products = __builtin_convertvector(dot<typename T::kind>(first, w, x), vec_f);
            sums.sum[c][j%2] += products*spread_scales<T::SCALES>(scale[c], j);
        }
    }
}

inline floats add_halves(vec_f x) {
#if VL == 16
    return (floats) _mm256_add_ps(_mm512_castps512_ps256((__m512) x), _mm512_extractf32x8_ps((__m512) x, 1));
#else
    return (floats) x;
#endif
}

// The sum of each vector's numbers.
inline __m128 add_up(const floats (& x)[ROWS]) {
    const __m256 sums = _mm256_hadd_ps(
        _mm256_hadd_ps((__m256) x[0], (__m256) x[1]), _mm256_hadd_ps((__m256) x[2], (__m256) x[3]));
    return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

// Of a row, the sums of 8 parts by each column.
template <typename T, int C>
inline void add_row(const char * row, const h2o_product_direct & d, floats * all) {
    row_sums<C> sums = {};

    int64_t b = 0;
    const auto add = [&](auto blocks) {
        constexpr int N     = decltype(blocks)::value;
        constexpr int BYTES = N*T::BYTES/T::BLOCKS;
        add_unit<T, N, C>(row, d, b, sums);
        row += BYTES;
        b   += N;
    };
    while (b + 8 <= d.n_blocks) {
        add(constant<8>());
    }
    if constexpr (T::BLOCKS == 1) {
        if (d.n_blocks & 4) {
            add(constant<4>());
        }
        if (d.n_blocks & 2) {
            add(constant<2>());
        }
        if (d.n_blocks & 1) {
            add(constant<1>());
        }
    }
    for (int c = 0; c < C; ++c) {
        all[c*ROWS] = add_halves(sums.sum[c][0] + sums.sum[c][1]) + (T::MINS ? sums.min[c] : floats {});
    }
}

template <typename T, int C>
void multiply_direct(const h2o_product_direct & d) {
    for (int64_t i = 0; i < d.n_rows; i += ROWS) {
        const int64_t n = min_of(ROWS, d.n_rows - i);

        floats all[C][ROWS] = {};
        for (int64_t r = 0; r < n; ++r) {
            add_row<T, C>(d.rows + (i + r)*d.stride, d, &all[0][r]);
        }
        for (int c = 0; c < C; ++c) {
            float sum[ROWS];
            _mm_storeu_ps(sum, add_up(all[c]));
            __builtin_memcpy(d.dst[c] + d.row + i, sum, n*sizeof(float));
        }
    }
}

template <typename T>
void multiply_few(const h2o_product_direct & d) {
    with_constant<MAX_DIRECT<typename T::kind>>((int) d.n_columns, [&](auto n) {
        multiply_direct<T, decltype(n)::value>(d);
    });
}

} // namespace
