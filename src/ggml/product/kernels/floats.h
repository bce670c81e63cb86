#pragma once

// Weights in F16, which are multiplied as numbers in F32, one in a lane. Columns are not rounded. AVX-512 has registers for
// this; with AVX2 upstream is as fast.

#include "ggml/product/kernels/panels.h"

namespace {

constexpr int FLOAT_BLOCK = H2O_PRODUCT_BLOCK*2; // bytes of a block of weights

// Steps of panels and groups are in the order in which transposed rows are stored: of every VL numbers first 0, 4, 8 and
// so on, then 1, 5, 9 and so on.
inline int step_of(int number) {
    const int i = number%VL;
    return number - i + i%ROWS*(VL/ROWS) + i/ROWS;
}

struct float_panels {
    static constexpr int PANEL_BLOCK = H2O_PRODUCT_BLOCK*VL*4;
    static constexpr int ROWS_BLOCK  = H2O_PRODUCT_BLOCK*ROWS*4;

    static constexpr int AT_ONCE     = 4;
    static constexpr int AT_END      = 5;

    static constexpr bool SPREADS = false; // with so few columns, rows are read in place

    template <int N, int SPREAD>
    static void add(const char * rows, const char * panels, int64_t panel_stride, int64_t n_blocks,
            vec_f (& sums)[N][ROWS/SPREAD]) {
        for (int i = 0; i < (int) n_blocks*H2O_PRODUCT_BLOCK; ++i) {
            for_step<N, SPREAD>(rows, panels, panel_stride, i, [&](int p, int r, vec_i w, vec_i x) {
                sums[p][r] += (vec_f) w*(vec_f) x;
            });
        }
    }
};

void pack_float_columns(const char * const * columns, int n, int spread, int64_t n_blocks, char * panel) {
    const char * column[VL];
    for (int i = 0; i < VL; ++i) {
        column[i] = columns[min_of(i/spread, n - 1)];
    }
    for (int64_t b = 0; b < n_blocks; ++b, panel += float_panels::PANEL_BLOCK) {
        for (int i = 0; i < H2O_PRODUCT_BLOCK/8; ++i) {
            vec_f x[8];
            load_columns(column, (b*H2O_PRODUCT_BLOCK + i*8)*4, x);
            for (int j = 0; j < 8; ++j) {
                store((float *) panel + step_of(i*8 + j)*VL, x[j]);
            }
        }
    }
}

void unpack_float_rows(const char * rows, int64_t stride, int n, int64_t n_blocks, char * dst) {
    const char * row[ROWS];
    for (int i = 0; i < ROWS; ++i) {
        row[i] = rows + min_of(i, n - 1)*stride;
    }
    for (int64_t b = 0; b < n_blocks; ++b) {
        for (int i = 0; i < H2O_PRODUCT_BLOCK/VL; ++i, dst += VL*ROWS*4) {
            vec_f x[ROWS];
            for (int r = 0; r < ROWS; ++r) {
                x[r] = load_half(row[r] + i*VL*2);
            }
            transpose<ROWS>(x);
            for (int r = 0; r < ROWS; ++r) {
                store((float *) dst + r*VL, x[r]);
            }
        }
        for (int r = 0; r < ROWS; ++r) {
            __builtin_prefetch(row[r] + ROWS*stride, 0, 3); // of the next group
            row[r] += FLOAT_BLOCK;
        }
    }
}

int64_t float_column_bytes(int64_t n_blocks) {
    return n_blocks*H2O_PRODUCT_BLOCK*4;
}

void pack_float_column(const char * column, int64_t first, int64_t n, int64_t, char * dst) {
    __builtin_memcpy(dst + first*H2O_PRODUCT_BLOCK*4, column, n*H2O_PRODUCT_BLOCK*4);
}

// columns that are multiplied at once, as many as there are registers for
constexpr int COLUMNS = 6;

// 4 rows by C columns from `first` on.
template <int C>
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
        for (int i = 0; i < H2O_PRODUCT_BLOCK/VL; ++i, columns += VL*4) {
            vec_f x[C];
            for (int c = 0; c < C; ++c) {
                x[c] = load((const float *) (columns + c*d.column_stride));
            }
            for (int r = 0; r < ROWS; ++r) {
                const vec_f w = load_half(row[r] + i*VL*2);
                for (int c = 0; c < C; ++c) {
                    sum[c][r] += w*x[c];
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

void multiply_few_floats(const h2o_product_direct & d) {
    for (int64_t i = 0; i < d.n_rows; i += ROWS) {
        int64_t first = 0;
        for (int64_t n_tiles = (d.n_columns + COLUMNS - 1)/COLUMNS; n_tiles > 0; --n_tiles) {
            const int64_t n = (d.n_columns - first + n_tiles - 1)/n_tiles; // tiles of one size, or nearly
            with_constant<COLUMNS>((int) n, [&](auto c) {
                multiply_tile<decltype(c)::value>(d, i, first);
            });
            first += n;
        }
    }
}

} // namespace
