// Products with many columns by tiles of AMX in BF16, to which rows are unpacked and columns rounded. A tile adds up the
// products of a slice in float32. The file that includes this defines VL, 16, and KERNEL, the function's name.

#include "ggml/product/kernels/types.h"
#include "ggml/simd/amx.h"

h2o_product_kernels KERNEL;

namespace {

constexpr int ROWS_AT_ONCE = 256; // whose unpacked slice stays in the L2 cache; with fewer, columns are read too often
constexpr int SLICE_BLOCKS = 8;
constexpr int MIN_COLUMNS  = 49;  // fewer are faster by bytes, as rows need not be unpacked to BF16

constexpr int EDGE = 32;   // columns of a panel, and rows of a group: two tiles
constexpr int TILE = 1024; // bytes

inline vec_f round_pairs(vec_f low, vec_f high) {
    return (vec_f) _mm512_cvtne2ps_pbh((__m512) high, (__m512) low);
}

// A panel's block is two tiles: 32 numbers of each column.
void pack_columns(const char * const * columns, int n, int, int64_t n_blocks, char * panel) {
    for (int64_t b = 0; b < n_blocks; ++b) {
        for (int i = 0; i < EDGE; ++i, panel += TILE/VL) {
            const float * x = (const float *) columns[min_of(i, n - 1)] + b*H2O_PRODUCT_BLOCK;
            store((float *) panel, round_pairs(load(x), load(x + VL)));
        }
    }
}

inline vec_f floats_of_bytes(__m128i x) {
    return __builtin_convertvector((vec_i) _mm512_cvtepu8_epi32(x), vec_f);
}

// A block's numbers as pairs. `first` is a minimum, or what number 0 stands for.
template <typename T>
inline vec_f unpack_block(const char * row, int b, const float * scale, const float * first) {
    const __m256i w    = (__m256i) T::template numbers<1>(row, b);
    const vec_f   low  = floats_of_bytes(_mm256_castsi256_si128(w));
    const vec_f   high = floats_of_bytes(_mm256_extracti128_si256(w, 1));
    const int     i    = b*T::SCALES;
    const int     j    = i + T::SCALES - 1;
    return round_pairs(low*scale[i] + first[i], high*scale[j] + first[j]);
}

// A unit of 16 rows, whose blocks become tiles: the first pair of each row, the second, and so on.
template <typename T>
inline void unpack_unit(const char * const * row, int64_t stride, char * dst) {
    floats scale[VL][T::SCALES];
    floats first[VL][T::SCALES];
    for (int r = 0; r < VL; ++r) {
        T::template scales<T::BLOCKS>(row[r], scale[r], first[r]);
        for (int h = 0; h < T::SCALES && !T::MINS; ++h) {
            first[r][h] = scale[r][h]*(float) -T::ZERO;
        }
        for (int i = 0; i < T::BYTES; i += 64) {
            __builtin_prefetch(row[r] + EDGE*stride + i, 0, 3); // of the next group
        }
    }
#pragma GCC unroll 8
    for (int b = 0; b < T::BLOCKS; ++b, dst += 2*TILE) {
        vec_f pairs[VL];
#pragma GCC unroll 16
        for (int r = 0; r < VL; ++r) {
            pairs[r] = unpack_block<T>(row[r], b, (const float *) scale[r], (const float *) first[r]);
        }
        transpose(pairs);
#pragma GCC unroll 16
        for (int r = 0; r < VL; ++r) {
            store((float *) dst + r*VL, pairs[r]);
        }
    }
}

template <typename T>
void unpack_rows(const char * rows, int64_t stride, int n, int64_t n_blocks, char * dst) {
    const char * row[EDGE];
    for (int i = 0; i < EDGE; ++i) {
        row[i] = rows + min_of(i, n - 1)*stride;
    }
    for (int64_t b = 0; b < n_blocks; b += T::BLOCKS, dst += T::BLOCKS*2*TILE) {
        unpack_unit<T>(row, stride, dst);
        unpack_unit<T>(row + VL, stride, dst + TILE);
        for (int i = 0; i < EDGE; ++i) {
            row[i] += T::BYTES;
        }
    }
}

// sums[32][32] = products of a panel's columns and a group's rows, added to `before` unless it is NULL
inline void multiply_tiles(
        const char * columns, const char * rows, int64_t n_blocks, const float * before, float * sums) {
    constexpr int STRIDE = EDGE*sizeof(float);

    if (before) {
        _tile_loadd(0, before,                STRIDE);
        _tile_loadd(1, before + VL,           STRIDE);
        _tile_loadd(2, before + VL*EDGE,      STRIDE);
        _tile_loadd(3, before + VL*EDGE + VL, STRIDE);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t b = 0; b < n_blocks; ++b, columns += 2*TILE, rows += 2*TILE) {
        _tile_loadd(4, columns, TILE/VL);
        _tile_loadd(6, rows, TILE/VL);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, rows + TILE, TILE/VL);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, columns + TILE, TILE/VL);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums,                STRIDE);
    _tile_stored(1, sums + VL,           STRIDE);
    _tile_stored(2, sums + VL*EDGE,      STRIDE);
    _tile_stored(3, sums + VL*EDGE + VL, STRIDE);
}

void multiply(const h2o_product_slice & s) {
    const tile_config config;

    const int64_t n_groups = (s.n_rows + EDGE - 1)/EDGE;
    for (int64_t column = 0; column < s.n_columns; column += EDGE) {
        const char * panel = s.panels + column/EDGE*s.panel_stride;
        for (int64_t g = 0; g < n_groups; ++g) {
            alignas(64) float last[EDGE*EDGE];
            float * kept = s.sums + (column/EDGE*n_groups + g)*EDGE*EDGE;
            multiply_tiles(panel, s.rows + g*s.n_blocks*2*TILE, s.n_blocks, s.is_first ? nullptr : kept,
                s.is_last ? last : kept);

            const int64_t n = min_of(EDGE, s.n_rows - g*EDGE);
            for (int64_t i = 0; i < min_of(EDGE, s.n_columns - column) && s.is_last; ++i) {
                __builtin_memcpy(s.dst[column + i] + s.row + g*EDGE, last + i*EDGE, n*sizeof(float));
            }
        }
    }
}

template <typename T>
const h2o_product_kernel * kernel_of(const T *) {
    static constexpr h2o_product_kernel kernel = {
        T::BLOCKS, T::BYTES, H2O_PRODUCT_BLOCK*4, SLICE_BLOCKS, EDGE, 1, EDGE, ROWS_AT_ONCE,
        MIN_COLUMNS, 0, 2*TILE, 2*TILE,
        pack_columns, unpack_rows<T>, multiply, nullptr, nullptr, nullptr,
    };
    return &kernel;
}

} // namespace

const h2o_product_kernel * KERNEL(ggml_type type) {
    return for_type(type, [](auto * t) { return kernel_of(t); });
}
