// AMX's tiles, and what the kernels that use them need of AVX-512, on any CPU with AVX2: tools/check_kernels.py amx. Included before
// all else, it says that the compiler has these instructions. What the CPU would refuse ends the process.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// only now: immintrin.h would be of another opinion
#define __AVX512F__    1
#define __AVX512VNNI__ 1
#define __AVX512BF16__ 1
#define __AMX_BF16__   1
#define __AMX_INT8__   1

namespace {

// --- AMX

struct emulated_config {
    uint8_t  palette;
    uint8_t  start_row;
    uint8_t  reserved[14];
    uint16_t colsb[16];
    uint8_t  rows[16];
};

constexpr int EMULATED_BYTES = 64;

struct emulated_tile {
    alignas(64) char row[16][EMULATED_BYTES];
};

thread_local emulated_config emulated_tiles_config;
thread_local emulated_tile   emulated_tiles[8];

inline void emulated_check(bool is_right, const char * what) {
    if (!is_right) {
        fprintf(stderr, "AMX in software: %s\n", what);
        abort();
    }
}

inline void emulated_load_config(const void * src) {
    memcpy(&emulated_tiles_config, src, sizeof(emulated_config));
    memset(emulated_tiles, 0, sizeof(emulated_tiles));
    for (int i = 0; i < 16; ++i) {
        const emulated_config & c = emulated_tiles_config;
        emulated_check(c.palette == 1 && c.colsb[i] <= EMULATED_BYTES && c.rows[i] <= 16 && (i < 8 || c.colsb[i] + c.rows[i] == 0),
            "no such configuration");
    }
}

inline void emulated_release() {
    memset(&emulated_tiles_config, 0, sizeof(emulated_config));
    memset(emulated_tiles, 0, sizeof(emulated_tiles));
}

inline int emulated_rows(int tile) {
    emulated_check(emulated_tiles_config.palette == 1, "tiles are not configured");
    return emulated_tiles_config.rows[tile];
}

inline void emulated_zero(int tile) {
    emulated_rows(tile);
    memset(&emulated_tiles[tile], 0, sizeof(emulated_tile));
}

inline void emulated_load(int tile, const void * src, int64_t stride) {
    emulated_zero(tile);
    for (int r = 0; r < emulated_rows(tile); ++r) {
        memcpy(emulated_tiles[tile].row[r], (const char *) src + r*stride, emulated_tiles_config.colsb[tile]);
    }
}

inline void emulated_store(int tile, void * dst, int64_t stride) {
    for (int r = 0; r < emulated_rows(tile); ++r) {
        memcpy((char *) dst + r*stride, emulated_tiles[tile].row[r], emulated_tiles_config.colsb[tile]);
    }
}

typedef float   emulated_floats __attribute__((vector_size(64), may_alias));
typedef int32_t emulated_ints   __attribute__((vector_size(64), may_alias));

// Rows of pairs in BF16 (the upper halves of float32) by columns of them: the first and the second numbers have sums of their own, which
// are added at the end. Subnormal numbers are kept; the CPU takes them for 0.
inline void emulated_product(int c, int a, int b) {
    const emulated_config & config = emulated_tiles_config;
    emulated_check(emulated_rows(c) == config.rows[a] && config.colsb[a] == 4*config.rows[b] && config.colsb[b] == config.colsb[c] &&
        a != b && a != c && b != c, "these tiles cannot be multiplied");

    for (int r = 0; r < config.rows[c]; ++r) {
        emulated_floats first  = {};
        emulated_floats second = {};
        for (int k = 0; k < config.rows[b]; ++k) {
            int32_t pair;
            memcpy(&pair, emulated_tiles[a].row[r] + 4*k, 4);
            const emulated_ints x = pair - emulated_ints {};
            const emulated_ints y = *(const emulated_ints *) emulated_tiles[b].row[k];
            first  += (emulated_floats) (x << 16)*(emulated_floats) (y << 16);
            second += (emulated_floats) (x & (int) 0xffff0000)*(emulated_floats) (y & (int) 0xffff0000);
        }
        *(emulated_floats *) emulated_tiles[c].row[r] += first + second; // columns that the tile has not got are 0 in b
    }
}

// --- the instructions of AVX-512 that kernels with tiles use

typedef int8_t   emulated_bytes  __attribute__((vector_size(16)));
typedef uint16_t emulated_shorts __attribute__((vector_size(32)));
typedef uint32_t emulated_words  __attribute__((vector_size(64)));

template <typename T, typename A, typename B>
inline T emulated_join(A a, B b) {
    T x;
    memcpy(&x, &a, 32);
    memcpy((char *) &x + 32, &b, 32);
    return x;
}

// c and the products of four bytes of a, without a sign, and b
inline __m512i emulated_products(emulated_ints c, emulated_words a, emulated_words b) {
    for (int i = 0; i < 32; i += 8) {
        c += (emulated_ints) (a >> i & 255)*((emulated_ints) (b << (24 - i)) >> 24);
    }
    return (__m512i) c;
}

inline __m512 emulated_load(uint32_t mask, const void * x) {
    emulated_floats lanes = {};
    for (int i = 0; i < 16; ++i) {
        lanes[i] = mask >> i & 1 ? ((const float *) x)[i] : 0.0f;
    }
    return (__m512) lanes;
}

inline __m512 emulated_cvtph(__m256i x) {
    return emulated_join<__m512>(_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}

// to the nearest, of two the even one
inline __m256i emulated_bf16_of(__m512 x) {
    const emulated_words u       = (emulated_words) x;
    const emulated_words rounded = u + 0x7fff + (u >> 16 & 1);
    const emulated_words y       = (u & 0x7fffffff) > 0x7f800000 ? u | 0x400000 : rounded;
    return (__m256i) __builtin_convertvector(y >> 16, emulated_shorts);
}

} // namespace

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_storeconfig
#undef _tile_loadconfig
#undef _tile_release

#define _tile_loadd(tile, src, stride)  emulated_load(tile, src, stride)
#define _tile_stored(tile, dst, stride) emulated_store(tile, dst, stride)
#define _tile_zero(tile)                emulated_zero(tile)
#define _tile_dpbf16ps(c, a, b)         emulated_product(c, a, b)
#define _tile_storeconfig(config)       memcpy(config, &emulated_tiles_config, sizeof(emulated_config))
#define _tile_loadconfig(config)        emulated_load_config(config)
#define _tile_release()                 emulated_release()

#define _mm512_loadu_ps(x)                     emulated_load(0xffff, x)
#define _mm512_maskz_loadu_ps(mask, x)         emulated_load(mask, x)
#define _mm512_cvtph_ps(x)                     emulated_cvtph(x)
#define _mm512_maskz_cvtph_ps(mask, x)         emulated_cvtph(x)
#define _mm512_cvtepi8_epi32(x)                ((__m512i) __builtin_convertvector((emulated_bytes) (x), emulated_ints))
#define _mm512_cvtepu8_epi32(x)                ((__m512i) emulated_join<emulated_ints>(_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))))
#define _mm512_castsi256_si512(x)              emulated_join<__m512i>(x, x)
#define _mm512_inserti64x4(x, y, i)            emulated_join<__m512i>(x, y) // i is 1
#define _mm512_dpbusd_epi32(c, a, b)           emulated_products((emulated_ints) (c), (emulated_words) (a), (emulated_words) (b))
#define _mm512_cvtepi32_epi8(x)                ((__m128i) __builtin_convertvector((emulated_ints) (x), emulated_bytes))
#define _mm512_cvtne2ps_pbh(b, a)              emulated_join<__m512bh>(emulated_bf16_of(a), emulated_bf16_of(b))
