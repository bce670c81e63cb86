#pragma once

// Panels and groups of dwords: numbers in F32, or pairs of numbers in BF16.

#include "ggml/product/kernels/panels.h"

namespace {

// bytes of a block of weights
constexpr int FLOAT_BLOCK = H2O_PRODUCT_BLOCK*2;

// A panel's and a group's steps are in the order in which rows come out of transposing: of every VL dwords 0, 4, 8 and so on first,
// then 1, 5, 9 and so on.
inline int step_of(int dword) {
    const int i = dword%VL;
    return dword - i + i%ROWS*(VL/ROWS) + i/ROWS;
}

template <typename K>
struct float_panels {
    static constexpr int PANEL_BLOCK = K::DWORDS*VL*4;
    static constexpr int ROWS_BLOCK  = K::DWORDS*ROWS*4;
    static constexpr int GROUP_ROWS  = ROWS;
    using setup = no_setup;

    static constexpr int AT_ONCE     = VL == 8 ? 3 : 4;
    static constexpr int AT_END      = VL == 8 ? 2 : 5;

    static constexpr bool SPREADS = false; // so few columns are multiplied by rows where they lie

    template <int N, int SPREAD>
    static void add(const char * rows, const char * panels, int64_t panel_stride, int64_t n_blocks, vec_f (& sums)[N][ROWS/SPREAD]) {
        for (int i = 0; i < (int) n_blocks*K::DWORDS; ++i) {
            for_step<N, SPREAD>(rows, panels, panel_stride, i, [&](int p, int r, vec_i w, vec_i x) {
                sums[p][r] = K::multiply_add(sums[p][r], (vec_f) w, (vec_f) x);
            });
        }
    }
};

template <typename K, bool IN_ORDER = false>
void pack_float_columns(const char * const * columns, int n, int spread, int64_t n_blocks, char * panel) {
    const char * column[VL];
    for (int i = 0; i < VL; ++i) {
        column[i] = columns[min_of(i/spread, n - 1)];
    }
    for (int64_t b = 0; b < n_blocks; ++b, panel += float_panels<K>::PANEL_BLOCK) {
        for (int i = 0; i < K::DWORDS/8; ++i) {
            vec_f x[8];
            K::load_dwords(column, b*H2O_PRODUCT_BLOCK*4, i, x);
            for (int j = 0; j < 8; ++j) {
                store((float *) panel + (IN_ORDER ? i*8 + j : step_of(i*8 + j))*VL, x[j]);
            }
        }
    }
}

template <typename T>
void unpack_float_rows(const char * rows, int64_t stride, int n, int64_t n_blocks, char * dst) {
    const char * row[ROWS];
    for (int i = 0; i < ROWS; ++i) {
        row[i] = rows + min_of(i, n - 1)*stride;
    }
    for (int64_t b = 0; b < n_blocks; ++b) {
        for (int i = 0; i < T::DWORDS/VL; ++i, dst += VL*ROWS*4) {
            vec_f x[ROWS];
            for (int r = 0; r < ROWS; ++r) {
                x[r] = T::dwords(row[r], i);
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

} // namespace
