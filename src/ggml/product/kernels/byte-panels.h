#pragma once

// Panels and groups of bytes.

#include "ggml/product/kernels/panels.h"

namespace {

// A panel's block has numbers, scales, and sums of the columns' numbers: times -ZERO, at which the products start, or
// times scales, to be multiplied by minimums. A group's block has numbers, scales, minimums.
template <typename K>
struct layout {
    static constexpr int PANEL_SCALES = N_STEPS<K>*VL*4;
    static constexpr int PANEL_SUMS   = PANEL_SCALES + VL*4;
    static constexpr int PANEL_BLOCK  = PANEL_SUMS + (FIRST<K> || K::MINS ? K::SCALES*VL*4 : 0);

    static constexpr int ROWS_SCALES  = N_STEPS<K>*ROWS*4;
    static constexpr int ROWS_MINS    = ROWS_SCALES + K::SCALES*ROWS*4;
    static constexpr int ROWS_BLOCK   = ROWS_MINS + (K::MINS ? K::SCALES*ROWS*4 : 0);
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

        for (int h = 0; h < K::SCALES && (FIRST<K> || K::MINS); ++h) {
            vec_i sum = {};
            for (int j = h*8/K::SCALES; j < (h + 1)*8/K::SCALES; ++j) {
                sum = add_bytes(sum, (vec_i) x[j]);
            }
            const vec_f kept = K::MINS ? __builtin_convertvector(sum, vec_f)*scales : (vec_f) (sum*-K::ZERO);
            store((float *) (panel + L::PANEL_SUMS + h*VL*4), kept);
        }
    }
}

// A unit of a group's rows.
template <typename T>
inline void unpack_unit(const char * const * row, int64_t stride, char * dst) {
    using L = layout<typename T::kind>;

    float scales[ROWS][8*T::SCALES];
    float mins  [ROWS][8*T::SCALES];
    for (int r = 0; r < ROWS; ++r) {
        floats s[T::SCALES];
        floats m[T::SCALES];
        T::template scales<T::BLOCKS>(row[r], s, m);
        __builtin_memcpy(scales[r], s, sizeof(s));
        if (T::MINS) {
            __builtin_memcpy(mins[r], m, sizeof(m));
        }
        for (int i = 0; i < T::BYTES; i += 64) {
            __builtin_prefetch(row[r] + ROWS*stride + i, 0, 3); // of the next group
        }
    }
#pragma GCC unroll 8
    for (int b = 0; b < T::BLOCKS; ++b, dst += L::ROWS_BLOCK) {
        bytes<1> w[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            w[r] = T::template numbers<1>(row[r], b);
        }
        widen_rows<typename T::kind>(w, dst);

        for (int h = 0; h < T::SCALES; ++h) {
            for (int r = 0; r < ROWS; ++r) {
                const int i = (h*ROWS + r)*4;
                __builtin_memcpy(dst + L::ROWS_SCALES + i, &scales[r][b*T::SCALES + h], sizeof(float));
                if (T::MINS) {
                    __builtin_memcpy(dst + L::ROWS_MINS + i, &mins[r][b*T::SCALES + h], sizeof(float));
                }
            }
        }
    }
}

template <typename T>
void unpack_rows(const char * rows, int64_t stride, int n, int64_t n_blocks, char * dst) {
    const char * row[ROWS];
    for (int i = 0; i < ROWS; ++i) {
        row[i] = rows + min_of(i, n - 1)*stride;
    }
    for (int64_t b = 0; b < n_blocks; b += T::BLOCKS, dst += T::BLOCKS*layout<typename T::kind>::ROWS_BLOCK) {
        unpack_unit<T>(row, stride, dst);
        for (int i = 0; i < ROWS; ++i) {
            row[i] += T::BYTES;
        }
    }
}

// Scales the products of half H of a block by a panel, and adds them to the sums.
template <typename K, int SPREAD, int H, int N>
inline void add_scaled(const vec_i (& products)[N], const char * rows, const char * panel, vec_f (& sums)[N]) {
    using L = layout<K>;

    const vec_f d = load((const float *) (panel + L::PANEL_SCALES));
#pragma GCC unroll 16
    for (int r = 0; r < N; ++r) {
        const vec_f scale = (vec_f) repeat<SPREAD>(rows + L::ROWS_SCALES + (H*ROWS + r*SPREAD)*4);
        sums[r] += __builtin_convertvector(products[r], vec_f)*(scale*d);
        if (K::MINS) {
            const vec_f min = (vec_f) repeat<SPREAD>(rows + L::ROWS_MINS + (H*ROWS + r*SPREAD)*4);
            sums[r] += min*load((const float *) (panel + L::PANEL_SUMS + H*VL*4));
        }
    }
}

template <typename K, int N, int SPREAD, int H>
inline void multiply_half(
        const char * rows, const char * panels, int64_t panel_stride, vec_f (& sums)[N][ROWS/SPREAD]) {
    vec_i sum[N][ROWS/SPREAD];
    for (int p = 0; p < N; ++p) {
        for (vec_i & s : sum[p]) {
            s = FIRST<K> ? *(const vec_i_mem *) (panels + p*panel_stride + layout<K>::PANEL_SUMS + H*VL*4) : vec_i {};
        }
    }
    add_products<K, N, SPREAD, H>(rows, panels, panel_stride, sum);

    for (int p = 0; p < N; ++p) {
        add_scaled<K, SPREAD, H>(sum[p], rows, panels + p*panel_stride, sums[p]);
    }
}

template <typename K>
struct byte_panels {
    static constexpr int PANEL_BLOCK = layout<K>::PANEL_BLOCK;
    static constexpr int ROWS_BLOCK  = layout<K>::ROWS_BLOCK;

    static constexpr int AT_ONCE     = 2;
    static constexpr int AT_END      = VL == 8 ? 1 : 3;

    static constexpr bool SPREADS = MAX_DIRECT<K> < VL/2;

    template <int N, int SPREAD>
    static void add(const char * rows, const char * panels, int64_t panel_stride, int64_t n_blocks,
            vec_f (& sums)[N][ROWS/SPREAD]) {
        for (int64_t b = 0; b < n_blocks; ++b) {
            multiply_half<K, N, SPREAD, 0>(rows, panels, panel_stride, sums);
            if constexpr (K::SCALES == 2) {
                multiply_half<K, N, SPREAD, 1>(rows, panels, panel_stride, sums);
            }
            panels += PANEL_BLOCK;
            rows   += ROWS_BLOCK;
        }
    }
};

} // namespace
