#pragma once

// Products with few columns, as for generated tokens. Rows are read once, in place, at the speed of memory.

#include "ggml/product/kernels/steps.h"

namespace {

// A packed column: all numbers; what the sums of 4 of them start with; scales, one for each scale of the weights; sums
// of numbers, times scales, to be multiplied by minimums. Blocks that are missing in a unit of 8 are zeros.
template <typename K>
struct column_layout {
    int64_t n_blocks;

    explicit column_layout(int64_t n) : n_blocks((n + 14)/8*8) {} // the last unit may start with the last block

    int64_t first () const { return n_blocks*32; }
    int64_t scales() const { return first() + (FIRST<K> ? n_blocks*32 : 0); }
    int64_t sums  () const { return scales() + n_blocks*4*K::SCALES; }
    int64_t size  () const { return sums() + (K::MINS ? n_blocks*4*K::SCALES : 0); }
};

template <typename K>
int64_t column_bytes(int64_t n_blocks) {
    return column_layout<K>(n_blocks).size();
}

// sums of 4 of a block's numbers
inline void sums_of_4(const char * numbers, int32_t * sums) {
    vec_i x = {};
    __builtin_memcpy(&x, numbers, 32);
    x = add_bytes(vec_i {}, x);
    __builtin_memcpy(sums, &x, 32);
}

template <typename K>
void pack_column(const char * column, int64_t first, int64_t n, int64_t n_blocks, char * dst) {
    static constexpr char zeros[H2O_PRODUCT_Q8_0_BYTES] = {};

    const column_layout<K> at(n_blocks);
    const int64_t end = first + n == n_blocks ? at.n_blocks : first + n;

    for (int64_t b = first; b < end; ++b) {
        const char * block = b < n_blocks ? column + (b - first)*H2O_PRODUCT_Q8_0_BYTES : zeros;
        const float  scale = half_at(block);

        int32_t part[8];
        sums_of_4(block + 2, part);
        __builtin_memcpy(dst + b*32, block + 2, 32);
        for (int h = 0; h < K::SCALES; ++h) {
            int sum = 0;
            for (int i = h*8/K::SCALES; i < (h + 1)*8/K::SCALES; ++i) {
                sum += part[i];
            }
            const float scaled = scale*sum;
            __builtin_memcpy(dst + at.scales() + (b*K::SCALES + h)*4, &scale, 4);
            if (K::MINS) {
                __builtin_memcpy(dst + at.sums() + (b*K::SCALES + h)*4, &scaled, 4);
            }
        }
        if (FIRST<K>) {
            for (int32_t & x : part) {
                x *= -K::ZERO;
            }
            __builtin_memcpy(dst + at.first() + b*32, part, 32);
        }
    }
}

// A row's sums by C columns.
template <int C>
struct row_sums {
    vec_f  sum[C][2]; // of even and of odd vectors
    floats min[C];    // minimums times the columns' sums
};

// N blocks of a row, from a unit's start, times the columns' blocks.
template <typename T, int N, int C>
inline void add_unit(const char * row, const h2o_product_direct & d, int64_t b, row_sums<C> & sums) {
    const column_layout<typename T::kind> at(d.n_blocks);

    floats scale[C][T::SCALES];
    floats s[T::SCALES];
    floats m[T::SCALES];
    T::template scales<N>(row, s, m);
    for (int c = 0; c < C; ++c) {
        const char * column = d.columns + c*d.column_stride;
        for (int h = 0; h < T::SCALES; ++h) {
            const int64_t i = b*4*T::SCALES + h*32;
            scale[c][h] = s[h]*load_floats(column + at.scales() + i);
            if (T::MINS) {
                sums.min[c] = sums.min[c] + m[h]*load_floats(column + at.sums() + i);
            }
        }
    }

#pragma GCC unroll 16
    for (int j = 0; j < (N*8 + VL - 1)/VL; ++j) {
        const vec_i w = load_numbers<T, N>(row, j);
        for (int c = 0; c < C; ++c) {
            const char * numbers = d.columns + c*d.column_stride + b*32 + j*VL*4;
            const vec_i  x       = *(const vec_i_mem *) numbers;
            const vec_i  first   = FIRST<typename T::kind> ? *(const vec_i_mem *) (numbers + at.first()) : vec_i {};
            const vec_f products = __builtin_convertvector(dot<typename T::kind>(first, w, x), vec_f);
            sums.sum[c][j%2] += products*spread_scales<T::SCALES>(scale[c], j);
        }
    }
}

// A row by C columns: 8 floats each, whose sum is the result.
template <typename T, int C>
inline void add_row(const char * row, const h2o_product_direct & d, floats * all) {
    row_sums<C> sums = {};

    int64_t b = 0;
    const auto add = [&](auto blocks) {
        constexpr int N = decltype(blocks)::value;
        add_unit<T, N, C>(row, d, b, sums);
        row += N*T::BYTES/T::BLOCKS;
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
            add_up(all[c], sum);
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
