#pragma once

// Few columns of dwords: numbers in F32, or pairs of numbers in BF16. Rows are read where they lie.

#include "ggml/product/kernels/steps.h"

namespace {

template <typename K>
int64_t float_column_bytes(int64_t n_blocks) {
    return n_blocks*K::DWORDS*4;
}

template <typename K>
void pack_float_column(const char * column, int64_t first, int64_t n, int64_t, char * dst) {
    for (int64_t b = 0; b < n; ++b) {
        K::pack(column + b*H2O_PRODUCT_BLOCK*4, dst + (first + b)*K::DWORDS*4);
    }
}

// Columns that are multiplied at once: as many as there are registers for.
constexpr int COLUMNS = VL == 8 ? 3 : 6;

// A group of rows by C columns from `first` on.
template <typename T, int C>
void multiply_tile(const h2o_product_direct & d, int64_t start, int64_t first) {
    const int64_t n_rows  = min_of(ROWS, d.n_rows - start);
    const char  * columns = d.columns + first*d.column_stride;

    const char * row[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        row[r] = d.rows + (start + min_of(r, n_rows - 1))*d.stride;
    }

    vec_f sum[C][ROWS] = {};
    for (int64_t b = 0; b < d.n_blocks; ++b) {
        for (int r = 0; r < ROWS; ++r) {
            __builtin_prefetch(row[r] + ROWS*d.stride, 0, 3); // of the next group
        }
        for (int i = 0; i < T::DWORDS/VL; ++i, columns += VL*4) {
            vec_f x[C];
            for (int c = 0; c < C; ++c) {
                x[c] = load((const float *) (columns + c*d.column_stride));
            }
            for (int r = 0; r < ROWS; ++r) {
                const vec_f w = T::dwords(row[r], i);
                for (int c = 0; c < C; ++c) {
                    sum[c][r] = T::multiply_add(sum[c][r], w, x[c]);
                }
            }
        }
        for (int r = 0; r < ROWS; ++r) {
            row[r] += FLOAT_BLOCK;
        }
    }

    for (int c = 0; c < C; ++c) {
        floats parts[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            parts[r] = add_halves(sum[c][r]);
        }
        float sums[ROWS];
        add_up(parts, sums);
        __builtin_memcpy(d.dst[first + c] + d.row + start, sums, n_rows*sizeof(float));
    }
}

template <typename T>
void multiply_few_floats(const h2o_product_direct & d) {
    for (int64_t i = 0; i < d.n_rows; i += ROWS) {
        int64_t first = 0;
        for (int64_t n_tiles = (d.n_columns + COLUMNS - 1)/COLUMNS; n_tiles > 0; --n_tiles) {
            const int64_t n = (d.n_columns - first + n_tiles - 1)/n_tiles; // tiles of one size, or nearly
            with_constant<COLUMNS>((int) n, [&](auto c) {
                multiply_tile<T, decltype(c)::value>(d, i, first);
            });
            first += n;
        }
    }
}

} // namespace
