#pragma once

// Weights without scales: blocks of 32 numbers in 16 bits, which are multiplied in dwords. A dword is a number in F32,
// and columns are not rounded; or it is two numbers in BF16, to which columns are rounded.
//
// Kinds of dwords:
//   DWORDS                of a block
//   load_dwords(...)      dwords 8i to 8i + 7 of a block of every column
//   pack(column, dst)     a block of a column
//   multiply_add(...)
//
// Types of weights:
//   dwords(block, i)      the i-th VL dwords of a block

#include "ggml/product/kernels/panels.h"

namespace {

constexpr int FLOAT_BLOCK = H2O_PRODUCT_BLOCK*2; // bytes of a block of weights

struct float_kind {
    static constexpr int DWORDS = 32;

    static void load_dwords(const char * const * column, int64_t offset, int i, vec_f * x) {
        load_columns(column, offset + i*32, x);
    }

    static void pack(const char * column, char * dst) {
        __builtin_memcpy(dst, column, 128);
    }

    static vec_f multiply_add(vec_f sum, vec_f w, vec_f x) {
        return sum + w*x;
    }
};

struct f16 : float_kind {
    using kind = float_kind;

    static vec_f dwords(const char * block, int64_t i) {
        return load_half(block + i*VL*2);
    }
};

#if defined(__AVX512BF16__)
struct pair_kind {
    static constexpr int DWORDS = 16;

    static void load_dwords(const char * const * column, int64_t offset, int i, vec_f * x) {
        const auto pairs = [&](int j) {
            return (__m256i) _mm512_cvtneps_pbh(_mm512_loadu_ps(column[j] + offset + i*64));
        };
        for (int j = 0; j < 8; ++j) {
            x[j] = (vec_f) join(pairs(j), pairs(j + 8));
        }
        transpose<8>(x);
    }

    static void pack(const char * column, char * dst) {
        const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(column + 64), _mm512_loadu_ps(column));
        _mm512_storeu_si512(dst, (__m512i) x);
    }

    static vec_f multiply_add(vec_f sum, vec_f w, vec_f x) {
        return (vec_f) _mm512_dpbf16_ps((__m512) sum, (__m512bh) w, (__m512bh) x);
    }
};

struct bf16 : pair_kind {
    using kind = pair_kind;

    static vec_f dwords(const char * block, int64_t i) {
        return load((const float *) block + i*VL);
    }
};
#else
struct bf16 : float_kind {
    using kind = float_kind;

    static vec_f dwords(const char * block, int64_t i) {
        return (vec_f) (widen_words(block + i*VL*2) << 16);
    }
};
#endif

// Steps of panels and groups are in the order in which transposed rows are stored: of every VL dwords first 0, 4, 8 and
// so on, then 1, 5, 9 and so on.
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

    static constexpr bool SPREADS = false; // with so few columns, rows are read in place

    template <int N, int SPREAD>
    static void add(const char * rows, const char * panels, int64_t panel_stride, int64_t n_blocks,
            vec_f (& sums)[N][ROWS/SPREAD]) {
        for (int i = 0; i < (int) n_blocks*K::DWORDS; ++i) {
            for_step<N, SPREAD>(rows, panels, panel_stride, i, [&](int p, int r, vec_i w, vec_i x) {
                sums[p][r] = K::multiply_add(sums[p][r], (vec_f) w, (vec_f) x);
            });
        }
    }
};

template <typename K>
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
                store((float *) panel + step_of(i*8 + j)*VL, x[j]);
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

// columns that are multiplied at once, as many as there are registers for
constexpr int COLUMNS = VL == 8 ? 3 : 6;

// 4 rows by C columns from `first` on.
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
