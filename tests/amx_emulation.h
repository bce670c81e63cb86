// AMX's tiles in software, for tests of the kernels where the CPU has none. What the CPU would refuse ends the process.

#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct emulated_config {
    uint8_t  palette;
    uint8_t  start_row;
    uint8_t  reserved[14];
    uint16_t colsb[16];
    uint8_t  rows[16];
};

constexpr int EMULATED_BYTES = 64;

struct emulated_tile {
    char row[16][EMULATED_BYTES];
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

inline void emulated_add(float & sum, const char * a, const char * b) {
    for (int i = 0; i < 4; i += 2) {
        float x = 0;
        float y = 0;
        memcpy((char *) &x + 2, a + i, 2); // BF16 is the upper half
        memcpy((char *) &y + 2, b + i, 2);
        sum += x*y;
    }
}

inline void emulated_add(int32_t & sum, const char * a, const char * b) {
    for (int i = 0; i < 4; ++i) {
        sum += (int8_t) a[i]*(int8_t) b[i];
    }
}

// rows of 4 bytes by columns of them
template <typename T>
inline void emulated_product(int c, int a, int b) {
    const emulated_config & config = emulated_tiles_config;
    emulated_check(emulated_rows(c) == config.rows[a] && config.colsb[a] == 4*config.rows[b] && config.colsb[b] == config.colsb[c] &&
        a != b && a != c && b != c, "these tiles cannot be multiplied");

    for (int r = 0; r < config.rows[c]; ++r) {
        for (int k = 0; k < config.rows[b]; ++k) {
            for (int n = 0; n < config.colsb[c]; n += 4) {
                T sum;
                memcpy(&sum, emulated_tiles[c].row[r] + n, sizeof(T));
                emulated_add(sum, emulated_tiles[a].row[r] + 4*k, emulated_tiles[b].row[k] + n);
                memcpy(emulated_tiles[c].row[r] + n, &sum, sizeof(T));
            }
        }
    }
}

} // namespace

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_storeconfig
#undef _tile_loadconfig
#undef _tile_release

#define _tile_loadd(tile, src, stride)  emulated_load(tile, src, stride)
#define _tile_stored(tile, dst, stride) emulated_store(tile, dst, stride)
#define _tile_zero(tile)                emulated_zero(tile)
#define _tile_dpbf16ps(c, a, b)         emulated_product<float>(c, a, b)
#define _tile_dpbssd(c, a, b)           emulated_product<int32_t>(c, a, b)
#define _tile_storeconfig(config)       memcpy(config, &emulated_tiles_config, sizeof(emulated_config))
#define _tile_loadconfig(config)        emulated_load_config(config)
#define _tile_release()                 emulated_release()
