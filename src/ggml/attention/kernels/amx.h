// Products in BF16 with almost the precision of float32: x = hi + lo + O(2^-17 x), both BF16, each times each.
//
// A tile multiplies 16 pairs of numbers. Of 32 numbers in a row, the j-th pair are the j-th and the (j+16)-th, so that
// two vectors become pairs without moving between lanes. Rows are split into groups of 32: 16 pairs of hi, 16 pairs of
// lo. The file that includes this defines VL, 16, and KERNEL, the kernel's name.

#include "ggml/attention/kernels/in-place.h"
#include "ggml/simd/amx.h"

namespace {

constexpr bool ROUNDED_TILES = true; // tiles of 8 bits would need more vector instructions for their scales

constexpr int BLOCK     = 32;   // rows and columns of 2x2 tiles; also numbers in a group
constexpr int TILE      = 256;  // pairs in a tile

constexpr int NR        = BLOCK;
constexpr int ROW_STEP  = BLOCK;
constexpr int GRAIN     = BLOCK; // a group
constexpr int MR        = 8;
constexpr int TILE_ROWS = 64;

static_assert(BLOCK == H2O_ATTN_PAD, "");

struct split_pairs {
    vec_i hi;
    vec_i lo;
};

// to the nearest BF16, a tie to the larger one: in the upper half of each lane
inline vec_i round_up(vec_f x) {
    return (vec_i) x + 0x8000;
}

inline vec_i upper(vec_i x) {
    return x & (int32_t) 0xffff0000;
}

inline vec_i pairs(vec_i a, vec_i b) {
    return (vec_i) ((vec_u) a >> 16) | upper(b);
}

inline split_pairs split(vec_f a, vec_f b) {
    const vec_i hi_a = round_up(a);
    const vec_i hi_b = round_up(b);
    const vec_i lo_a = round_up(a - (vec_f) upper(hi_a));
    const vec_i lo_b = round_up(b - (vec_f) upper(hi_b));

    return { pairs(hi_a, hi_b), pairs(lo_a, lo_b) };
}

inline void store(float * x, vec_i v) {
    *(vec_i_mem *) x = v;
}

// n of VL numbers, then zeros
inline vec_f load_some(const float * x, int64_t n) {
    const __mmask16 mask = n >= VL ? 0xffff : n > 0 ? (1 << n) - 1 : 0;

    return (vec_f) _mm512_maskz_loadu_ps(mask, x);
}

// Groups of 32 keys: [group][32 of d][hi, lo][16 keys twice][16 pairs of d][16 keys]
void pack_k(const float * rows, int64_t d, int64_t key, int64_t, void * k) {
    float * dst = (float *) k + key*h2o_attn_pad(d);

    for (int64_t i = 0; i < d; i += BLOCK, dst += 4*TILE) {
        for (int half = 0; half < 2; ++half) {
            vec_f hi[VL];
            vec_f lo[VL];
            for (int j = 0; j < VL; ++j) {
                const float * row = rows + (VL*half + j)*d + i;
                const split_pairs s = split(load_some(row, d - i), load_some(row + VL, d - i - VL));
                hi[j] = (vec_f) s.hi;
                lo[j] = (vec_f) s.lo;
            }
            transpose(hi);
            transpose(lo);
            for (int p = 0; p < VL; ++p) {
                store(dst +       half *TILE + p*VL, hi[p]);
                store(dst + (2 + half)*TILE + p*VL, lo[p]);
            }
        }
    }
}

// Groups of 32 columns: [group][32 keys][hi, lo][16 columns twice][16 pairs of keys][16 columns]
void pack_v(const float * rows, int64_t d, int64_t key, int64_t n_k, void * v) {
    for (int64_t i = 0; i < d; i += BLOCK) {
        float * dst = (float *) v + i*n_k + key*BLOCK;
        for (int half = 0; half < 2; ++half) {
            const int64_t column = i + half*VL;
            for (int p = 0; p < 16; ++p) {
                const split_pairs s = split(load_some(rows + p*d + column, d - column),
                        load_some(rows + (p + 16)*d + column, d - column));
                store(dst +       half *TILE + p*VL, s.hi);
                store(dst + (2 + half)*TILE + p*VL, s.lo);
            }
        }
    }
}

void pack_q(float * q, int64_t n_rows, int64_t d) {
    for (float * x = q; x < q + n_rows*h2o_attn_pad(d); x += BLOCK) {
        const split_pairs s = split(load(x), load(x + VL));
        store(x,      s.hi);
        store(x + VL, s.lo);
    }
}

// c += a*b, each 2x2 tiles
inline void add_products() {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

// c[32][32] = a[32][n]*b[n][32], added to c if add; a is split in rows, b in tiles. lo*lo is left out of sums
// that are added: weights and values do not need it, as logits do. All lo are left out if factors are rounded.
// Rows of a step after the tile's last one hold anything, and become rows that nobody reads.
void multiply(int, const float * a, int64_t lda, const float * b, int64_t n, float * c, int64_t ldc, bool add,
        bool is_rounded) {
    float * c1 = c + 16*ldc;

    lda *= sizeof(float);
    ldc *= sizeof(float);

    if (add) {
        _tile_loadd(0, c,       ldc);
        _tile_loadd(1, c  + VL, ldc);
        _tile_loadd(2, c1,      ldc);
        _tile_loadd(3, c1 + VL, ldc);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }

    for (int64_t i = 0; i < n; i += BLOCK, a += BLOCK, b += 4*TILE) {
        const float * a1 = (const float *) ((const char *) a + 16*lda);

        _tile_loadd(4, a,        lda);
        _tile_loadd(5, a1,       lda);
        _tile_loadd(6, b,        VL*sizeof(float));
        _tile_loadd(7, b + TILE, VL*sizeof(float));
        add_products(); // hi*hi
        if (is_rounded) {
            continue;
        }
        _tile_loadd(6, b + 2*TILE, VL*sizeof(float));
        _tile_loadd(7, b + 3*TILE, VL*sizeof(float));
        add_products(); // hi*lo

        _tile_loadd(4, a  + VL, lda);
        _tile_loadd(5, a1 + VL, lda);
        if (!add) {
            add_products(); // lo*lo
        }
        _tile_loadd(6, b,        VL*sizeof(float));
        _tile_loadd(7, b + TILE, VL*sizeof(float));
        add_products(); // lo*hi
    }

    _tile_stored(0, c,       ldc);
    _tile_stored(1, c  + VL, ldc);
    _tile_stored(2, c1,      ldc);
    _tile_stored(3, c1 + VL, ldc);
}

// 32 weights as a group
struct weights {
    static constexpr int N = 2;

    static void put(float * x, const vec_f (& e)[N]) {
        const split_pairs s = split(e[0], e[1]);
        store(x,      s.hi);
        store(x + VL, s.lo);
    }

    static void get(const float * x, vec_f (& e)[N]) {
        const vec_i hi = (vec_i) load(x);
        const vec_i lo = (vec_i) load(x + VL);
        e[0] = (vec_f) (hi << 16) + (vec_f) (lo << 16);
        e[1] = (vec_f) upper(hi)  + (vec_f) upper(lo);
    }
};

using product_setup = tile_config;

} // namespace

#include "ggml/attention/kernels/tile.h"
