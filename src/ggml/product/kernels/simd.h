#pragma once

// Products with Q8_0 weights. The file that includes this defines VL, KERNEL, MIN_COLUMNS, and the steps in which a block is multiplied:
//   N_STEPS                       so many, each with 4 bytes of numbers of every lane
//   MORE                          vectors of a panel's block besides numbers and scales
//   first_sum(more)               what a block's sums start with; `more` is these vectors
//   multiply_add(sum, w, x)       4 bytes of rows by those of columns, lane by lane
//   widen_columns(x, block)       from a block's numbers, dword i of every column in x[i], to what a panel holds
//   widen_rows(row, dst)          from 32 numbers of each of 4 rows to N_STEPS*4 bytes of each
// For one column, with VL/8 of its blocks in a vector:
//   COLUMN_MORE                   vectors besides these numbers, before their scales
//   add_column_sums(block)        writes them
//   dot_blocks(w, block)          sums of 4 products in each lane, of a row's numbers

#include "ggml/product/kernels/rows.h"

namespace {

constexpr int ROWS        = H2O_PRODUCT_ROWS;
constexpr int PANEL_BLOCK = (N_STEPS + 1 + MORE)*VL*4;
constexpr int ROWS_BLOCK  = (N_STEPS + 1)*ROWS*4;

typedef int64_t vec_l __attribute__((vector_size(VL*4)));

#if VL == 16
// Columns 0 and 8 of those that are given: 8 dwords each.
inline vec_f load_columns(const char * const * column, int64_t offset) {
    const __m512i x = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) (column[0] + offset)));
    return (vec_f) _mm512_inserti64x4(x, _mm256_loadu_si256((const __m256i *) (column[8] + offset)), 1);
}

// 4 dwords in every 4 lanes
inline vec_i repeat_4(const char * src) {
    return (vec_i) _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) src));
}

// Numbers of N blocks of a row, 0 where there is no second one.
template <int N>
inline vec_i load_row(const char * w) {
    const __m512i x = _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *) w));
    if constexpr (N == 1) {
        return (vec_i) x;
    }
    return (vec_i) _mm512_inserti64x4(x, _mm256_loadu_si256((const __m256i *) (w + H2O_PRODUCT_BLOCK_BYTES)), 1);
}

// Of ROWS scales for each block, the row's in all lanes of the block.
inline vec_f scale_of_row(__m256 scales, int row) {
    const vec_i from = vec_i { 0, 0, 0, 0, 0, 0, 0, 0, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS } + row;
    return (vec_f) _mm512_permutexvar_ps((__m512i) from, _mm512_castps256_ps512(scales));
}

inline __m256 add_halves(vec_f x) {
    return _mm256_add_ps(_mm512_castps512_ps256((__m512) x), _mm512_extractf32x8_ps((__m512) x, 1));
}
#else
inline vec_f load_columns(const char * const * column, int64_t offset) {
    return (vec_f) _mm256_loadu_si256((const __m256i *) (column[0] + offset));
}

inline vec_i repeat_4(const char * src) {
    return (vec_i) _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) src));
}

template <int N>
inline vec_i load_row(const char * w) {
    return (vec_i) _mm256_loadu_si256((const __m256i *) w);
}

inline vec_f scale_of_row(__m256 scales, int row) {
    return (vec_f) _mm256_permutevar8x32_ps(scales, _mm256_set1_epi32(row));
}

inline __m256 add_halves(vec_f x) {
    return (__m256) x;
}
#endif

// N dwords in every N lanes
template <int N>
inline vec_i repeat(const char * src) {
    static_assert(N == 1 || N == 2 || N == 4, "");
    if constexpr (N == 4) {
        return repeat_4(src);
    } else if constexpr (N == 2) {
        int64_t x;
        __builtin_memcpy(&x, src, sizeof(x));
        return (vec_i) (x - vec_l {});
    } else {
        int32_t x;
        __builtin_memcpy(&x, src, sizeof(x));
        return x - vec_i {};
    }
}

void pack_columns(const char * columns, int64_t stride, int n, int spread, int64_t n_blocks, char * panel) {
    const char * column[VL];
    for (int i = 0; i < VL; ++i) {
        column[i] = columns + min_of(i/spread, n - 1)*stride;
    }

    for (int64_t b = 0; b < n_blocks; ++b, panel += PANEL_BLOCK) {
        const int64_t offset = b*H2O_PRODUCT_BLOCK_BYTES;

        uint16_t scales[VL];
        for (int i = 0; i < VL; ++i) {
            __builtin_memcpy(&scales[i], column[i] + offset, sizeof(uint16_t));
        }
        store((float *) (panel + N_STEPS*VL*4), widen_halves(scales));

        vec_f x[8];
        for (int i = 0; i < 8; ++i) {
            x[i] = load_columns(column + i, offset + 2);
        }
        transpose<8>(x);
        widen_columns(x, panel);
    }
}

void unpack_rows(const char * rows, int64_t stride, int n, int64_t n_blocks, char * dst) {
    const char * row[ROWS];
    for (int i = 0; i < ROWS; ++i) {
        row[i] = rows + min_of(i, n - 1)*stride;
    }

    for (int64_t b = 0; b < n_blocks; ++b, dst += ROWS_BLOCK) {
        uint16_t scale[ROWS];
        for (int i = 0; i < ROWS; ++i) {
            __builtin_memcpy(&scale[i], row[i], sizeof(uint16_t));
            __builtin_prefetch(row[i] + ROWS*stride, 0, 3); // of the next group
            row[i] += 2;
        }
        const __m128i scales = _mm_setr_epi16(scale[0], scale[1], scale[2], scale[3], 0, 0, 0, 0);
        _mm_storeu_ps((float *) (dst + N_STEPS*ROWS*4), _mm_cvtph_ps(scales));

        widen_rows(row, dst);
        for (int i = 0; i < ROWS; ++i) {
            row[i] += H2O_PRODUCT_BLOCK;
        }
    }
}

// A group of rows by N panels, whose columns are in SPREAD lanes each: a vector has the sums of so many rows.
template <int N, int SPREAD>
inline void multiply_group(const char * rows, const char * panels, int64_t panel_stride, int64_t n_blocks, vec_f (& sums)[N][ROWS/SPREAD]) {
    for (int64_t b = 0; b < n_blocks; ++b) {
        vec_i sum[N][ROWS/SPREAD];
        for (int p = 0; p < N; ++p) {
            for (vec_i & s : sum[p]) {
                s = first_sum(panels + p*panel_stride + (N_STEPS + 1)*VL*4);
            }
        }

#pragma GCC unroll 1 // or GCC adds the products of several steps first, and runs out of registers
        for (int j = 0; j < N_STEPS; ++j) {
            vec_i x[N];
            for (int p = 0; p < N; ++p) {
                x[p] = *(const vec_i_mem *) (panels + p*panel_stride + j*VL*4);
            }
            for (int r = 0; r < ROWS/SPREAD; ++r) {
                const vec_i w = repeat<SPREAD>(rows + (j*ROWS + r*SPREAD)*4);
                for (int p = 0; p < N; ++p) {
                    sum[p][r] = multiply_add(sum[p][r], w, x[p]);
                }
            }
        }

        for (int p = 0; p < N; ++p) {
            const vec_f d = load((const float *) (panels + p*panel_stride + N_STEPS*VL*4));
            for (int r = 0; r < ROWS/SPREAD; ++r) {
                const vec_f scale = (vec_f) repeat<SPREAD>(rows + (N_STEPS*ROWS + r*SPREAD)*4);
                sums[p][r] += __builtin_convertvector(sum[p][r], vec_f)*(scale*d);
            }
        }

        panels += PANEL_BLOCK;
        rows   += ROWS_BLOCK;
    }
}

// The sums of a group by one panel.
template <int SPREAD>
void put(vec_f (& sums)[ROWS/SPREAD], float * dst, int64_t ld, int64_t n_rows, int64_t n_columns) {
    if constexpr (SPREAD == 1) {
        transpose<ROWS>(sums); // column i + ROWS*j is in lanes ROWS*j to ROWS*j + ROWS - 1 of sums[i]
    }
    for (int64_t i = 0; i < n_columns; ++i) {
        float x[ROWS];
        if constexpr (SPREAD == 1) {
            __builtin_memcpy(x, (const float *) &sums[i%ROWS] + i/ROWS*ROWS, sizeof(x));
        } else {
            for (int r = 0; r < ROWS/SPREAD; ++r) {
                __builtin_memcpy(x + r*SPREAD, (const float *) &sums[r] + i*SPREAD, SPREAD*sizeof(float));
            }
        }
        if (n_rows == ROWS) {
            __builtin_memcpy(dst + i*ld, x, sizeof(x));
        } else {
            __builtin_memcpy(dst + i*ld, x, n_rows*sizeof(float));
        }
    }
}

template <int N, int SPREAD>
void multiply_panels(const h2o_product_slice & s, int64_t first) {
    const char  * panels   = s.panels + first*s.panel_stride;
    const int64_t n_groups = (s.n_rows + ROWS - 1)/ROWS;

    for (int64_t g = 0; g < n_groups; ++g) {
        const auto kept = [&](int p, int r) { return s.sums + (((first + p)*n_groups + g)*ROWS + r)*VL; };

        vec_f sums[N][ROWS/SPREAD];
        for (int p = 0; p < N; ++p) {
            for (int r = 0; r < ROWS/SPREAD; ++r) {
                sums[p][r] = s.is_first ? vec_f {} : load(kept(p, r));
            }
        }

        multiply_group<N, SPREAD>(s.rows + g*s.n_blocks*ROWS_BLOCK, panels, s.panel_stride, s.n_blocks, sums);

        for (int p = 0; p < N; ++p) {
            if (s.is_last) {
                const int64_t column = (first + p)*VL;
                put<SPREAD>(sums[p], s.dst + column*s.ld + g*ROWS, s.ld,
                    min_of(ROWS, s.n_rows - g*ROWS), min_of(VL/SPREAD, s.n_columns - column));
            } else {
                for (int r = 0; r < ROWS/SPREAD; ++r) {
                    store(kept(p, r), sums[p][r]);
                }
            }
        }
    }
}

void multiply(const h2o_product_slice & s) {
    if (s.spread == 4) {
        return multiply_panels<1, 4>(s, 0);
    }
    if (s.spread == 2) {
        return multiply_panels<1, 2>(s, 0);
    }

    const int64_t n_panels = (s.n_columns + VL - 1)/VL;

    int64_t first = 0;
    for (; first + 2 <= n_panels; first += 2) {
        multiply_panels<2, 1>(s, first);
    }
    if (first < n_panels) {
        multiply_panels<1, 1>(s, first);
    }
}

// One column: as many of its blocks at once as a vector has room for.
constexpr int AT_ONCE       = VL/8;
constexpr int COLUMN_SCALES = (1 + COLUMN_MORE)*VL*4;
constexpr int COLUMN_BLOCKS = COLUMN_SCALES + 8*4; // bytes: numbers, what the instruction set needs, scales

// Of each block the scale stands there ROWS times. A missing block has only zeros.
void pack_column(const char * column, int64_t n_blocks, char * dst) {
    for (int64_t b = 0; b < n_blocks; b += AT_ONCE, dst += COLUMN_BLOCKS) {
        const int n = (int) min_of(AT_ONCE, n_blocks - b);
        if (n < AT_ONCE) {
            __builtin_memset(dst, 0, COLUMN_BLOCKS);
        }
        for (int i = 0; i < n; ++i, column += H2O_PRODUCT_BLOCK_BYTES) {
            uint16_t scale;
            __builtin_memcpy(&scale, column, sizeof(scale));
            __builtin_memcpy(dst + i*H2O_PRODUCT_BLOCK, column + 2, H2O_PRODUCT_BLOCK);
            _mm_storeu_ps((float *) (dst + COLUMN_SCALES) + i*ROWS, _mm_set1_ps(_cvtsh_ss(scale)));
        }
        add_column_sums(dst);
    }
}

// The sum of each vector's numbers.
inline __m128 add_up(const vec_f (& x)[ROWS]) {
    const __m256 sums = _mm256_hadd_ps(
        _mm256_hadd_ps(add_halves(x[0]), add_halves(x[1])), _mm256_hadd_ps(add_halves(x[2]), add_halves(x[3])));
    return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

// N blocks of each row and of the column. As many bytes from `ahead` on are asked for, in the order in which they lie.
template <int N>
inline void add_products(const char * const * row, const char * block, const char * ahead, vec_f (& sums)[ROWS]) {
    uint16_t scale[8] = {};
    for (int i = 0; i < N; ++i) {
        for (int r = 0; r < ROWS; ++r) {
            __builtin_memcpy(&scale[i*ROWS + r], row[r] + i*H2O_PRODUCT_BLOCK_BYTES, sizeof(uint16_t));
        }
    }
    const __m128i halves = _mm_setr_epi16(scale[0], scale[1], scale[2], scale[3], scale[4], scale[5], scale[6], scale[7]);
    const __m256  scales = _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_loadu_ps((const float *) (block + COLUMN_SCALES)));

    for (int r = 0; r < ROWS; ++r) {
        __builtin_prefetch(ahead + r*N*H2O_PRODUCT_BLOCK_BYTES, 0, 3);
        sums[r] += __builtin_convertvector(dot_blocks(load_row<N>(row[r] + 2), block), vec_f)*scale_of_row(scales, r);
    }
}

void multiply_column(const char * rows, int64_t stride, int64_t n_rows, const char * column, int64_t n_blocks, float * dst) {
    const char * ahead = rows + H2O_PRODUCT_AHEAD;

    for (int64_t i = 0; i < n_rows; i += ROWS, rows += ROWS*stride) {
        const int64_t n = min_of(ROWS, n_rows - i);

        const char * row [ROWS];
        vec_f        sums[ROWS] = {};
        for (int r = 0; r < ROWS; ++r) {
            row[r] = rows + min_of(r, n - 1)*stride;
        }

        const char * block = column;
        int64_t b = 0;
        for (; b + AT_ONCE <= n_blocks; b += AT_ONCE, block += COLUMN_BLOCKS) {
            add_products<AT_ONCE>(row, block, ahead, sums);
            ahead += AT_ONCE*ROWS*H2O_PRODUCT_BLOCK_BYTES;
            for (int r = 0; r < ROWS; ++r) {
                row[r] += AT_ONCE*H2O_PRODUCT_BLOCK_BYTES;
            }
        }
        if (b < n_blocks) {
            add_products<1>(row, block, ahead, sums);
            ahead += ROWS*H2O_PRODUCT_BLOCK_BYTES;
        }

        float sum[ROWS];
        _mm_storeu_ps(sum, add_up(sums));
        __builtin_memcpy(dst + i, sum, n*sizeof(float));
    }
}

const h2o_product_kernel kernel = {
    VL, MIN_COLUMNS, PANEL_BLOCK, ROWS_BLOCK, pack_columns, unpack_rows, multiply,
    AT_ONCE, COLUMN_BLOCKS, pack_column, multiply_column,
};

} // namespace

const h2o_product_kernel * const KERNEL = &kernel;
