#pragma once

// Panels and groups of bytes.

#include "ggml/product/kernels/panels.h"

namespace {

// whether the sums of a panel start with something
template <typename K>
#if defined(TILES)
constexpr bool STARTS = false; // tiles multiply signed bytes
#else
constexpr bool STARTS = FIRST<K>;
#endif

// Of a panel's block: numbers, scales, then what the sums start with, or what the minimums are multiplied by: sums of the columns'
// numbers times their scales. Of a group's: numbers, scales, minimums.
template <typename K>
struct layout {
    static constexpr int PANEL_SCALES = N_STEPS<K>*VL*4;
    static constexpr int PANEL_SUMS   = PANEL_SCALES + VL*4;
    static constexpr int PANEL_BLOCK  = PANEL_SUMS + (STARTS<K> || K::MINS ? K::SCALES*VL*4 : 0);

    static constexpr int ROWS_SCALES  = N_STEPS<K>*GROUP*4;
    static constexpr int ROWS_MINS    = ROWS_SCALES + K::SCALES*GROUP*4;
    static constexpr int ROWS_BLOCK   = ROWS_MINS + (K::MINS ? K::SCALES*GROUP*4 : 0);
};

template <typename K>
void pack_columns(const char * const * columns, int n, int spread, int64_t n_blocks, char * panel) {
    using L = layout<K>;

    const char * column[VL];
    for (int i = 0; i < VL; ++i) {
        column[i] = columns[min_of(i/spread, n - 1)];
    }

    for (int64_t b = 0; b < n_blocks; ++b, panel += L::PANEL_BLOCK) {
        const int64_t offset = b*H2O_PRODUCT_Q8_0_BYTES;

        uint16_t halves[VL];
        for (int i = 0; i < VL; ++i) {
            __builtin_memcpy(&halves[i], column[i] + offset, sizeof(uint16_t));
        }
        const vec_f scales = widen_halves(halves);
        store((float *) (panel + L::PANEL_SCALES), scales);

        vec_f x[8];
        load_columns(column, offset + 2, x);
        widen_columns<K>(x, panel);

        for (int h = 0; h < K::SCALES && (STARTS<K> || K::MINS); ++h) {
            vec_i sum = {};
            for (int j = h*8/K::SCALES; j < (h + 1)*8/K::SCALES; ++j) {
                sum = add_bytes(sum, (vec_i) x[j]);
            }
            const vec_f kept = K::MINS ? __builtin_convertvector(sum, vec_f)*scales : (vec_f) (sum*-K::ZERO);
            store((float *) (panel + L::PANEL_SUMS + h*VL*4), kept);
        }
    }
}

// N blocks of 4 rows, from a unit's start, to those from `first` on of a group.
template <typename T, int N>
inline void unpack_unit(const char * const * row, int64_t stride, int first, char * dst) {
    using L = layout<typename T::kind>;

    float scales[ROWS][8*T::SCALES];
    float mins  [ROWS][8*T::SCALES];
    for (int r = 0; r < ROWS; ++r) {
        floats s[T::SCALES];
        floats m[T::SCALES];
        T::template scales<N>(row[r], s, m);
        __builtin_memcpy(scales[r], s, sizeof(s));
        if (T::MINS) {
            __builtin_memcpy(mins[r], m, sizeof(m));
        }
        for (int i = 0; i < N*T::BYTES/T::BLOCKS; i += 64) {
            __builtin_prefetch(row[r] + GROUP*stride + i, 0, 3); // of the next group
        }
    }
#pragma GCC unroll 8
    for (int b = 0; b < N; ++b, dst += L::ROWS_BLOCK) {
        bytes<1> w[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            w[r] = T::template numbers<1>(row[r], b);
        }
        widen_rows<typename T::kind>(w, dst + first*32);

        for (int h = 0; h < T::SCALES; ++h) {
            for (int r = 0; r < ROWS; ++r) {
                __builtin_memcpy(dst + L::ROWS_SCALES + (h*GROUP + first + r)*4, &scales[r][b*T::SCALES + h], sizeof(float));
                if (T::MINS) {
                    __builtin_memcpy(dst + L::ROWS_MINS + (h*GROUP + first + r)*4, &mins[r][b*T::SCALES + h], sizeof(float));
                }
            }
        }
    }
}

template <typename T>
void unpack_rows(const char * rows, int64_t stride, int n, int64_t n_blocks, char * dst) {
    const char * row[GROUP];
    for (int i = 0; i < GROUP; ++i) {
        row[i] = rows + min_of(i, n - 1)*stride;
    }
    for (int64_t b = 0; b < n_blocks; b += T::BLOCKS, dst += T::BLOCKS*layout<typename T::kind>::ROWS_BLOCK) {
        for (int first = 0; first < GROUP; first += ROWS) {
            unpack_unit<T, T::BLOCKS>(row + first, stride, first, dst);
        }
        for (int i = 0; i < GROUP; ++i) {
            row[i] += T::BYTES;
        }
    }
}

// The products of half H of a block with a panel, scaled, to the sums.
template <typename K, int SPREAD, int H, int N>
inline void add_scaled(const vec_i (& products)[N], const char * rows, const char * panel, vec_f (& sums)[N]) {
    using L = layout<K>;

    const vec_f d = load((const float *) (panel + L::PANEL_SCALES));
#pragma GCC unroll 16
    for (int r = 0; r < N; ++r) {
        const vec_f scale = (vec_f) repeat<SPREAD>(rows + L::ROWS_SCALES + (H*GROUP + r*SPREAD)*4);
        sums[r] += __builtin_convertvector(products[r], vec_f)*(scale*d);
        if (K::MINS) {
            const vec_f min = (vec_f) repeat<SPREAD>(rows + L::ROWS_MINS + (H*GROUP + r*SPREAD)*4);
            sums[r] += min*load((const float *) (panel + L::PANEL_SUMS + H*VL*4));
        }
    }
}

} // namespace
