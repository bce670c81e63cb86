// AMX's tiles in software, for tests of the kernel where the CPU has none. The configuration is that of the kernel: 16 rows of 64 bytes.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr int EMULATED_ROWS = 16;

thread_local float emulated_tiles[8][EMULATED_ROWS][16];

inline void emulated_load(int tile, const void * src, int64_t stride) {
    for (int r = 0; r < EMULATED_ROWS; ++r) {
        memcpy(emulated_tiles[tile][r], (const char *) src + r*stride, sizeof(emulated_tiles[tile][r]));
    }
}

inline void emulated_store(int tile, void * dst, int64_t stride) {
    for (int r = 0; r < EMULATED_ROWS; ++r) {
        memcpy((char *) dst + r*stride, emulated_tiles[tile][r], sizeof(emulated_tiles[tile][r]));
    }
}

// the two BF16 of a pair
inline void emulated_pair(float pair, float (& x)[2]) {
    uint32_t bits;
    memcpy(&bits, &pair, sizeof(bits));
    const uint32_t low  = bits << 16;
    const uint32_t high = bits & 0xffff0000;
    memcpy(&x[0], &low,  sizeof(low));
    memcpy(&x[1], &high, sizeof(high));
}

inline void emulated_product(int c, int a, int b) {
    for (int r = 0; r < EMULATED_ROWS; ++r) {
        for (int k = 0; k < 16; ++k) {
            float x[2];
            emulated_pair(emulated_tiles[a][r][k], x);
            for (int n = 0; n < 16; ++n) {
                float y[2];
                emulated_pair(emulated_tiles[b][k][n], y);
                emulated_tiles[c][r][n] += x[0]*y[0] + x[1]*y[1];
            }
        }
    }
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
#define _tile_zero(tile)                memset(emulated_tiles[tile], 0, sizeof(emulated_tiles[tile]))
#define _tile_dpbf16ps(c, a, b)         emulated_product(c, a, b)
#define _tile_storeconfig(config)       memset(config, 0, 64)
#define _tile_loadconfig(config)        ((void) (config))
#define _tile_release()                 ((void) 0)
