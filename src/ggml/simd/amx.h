#pragma once

// Tiles of AMX, for files that are compiled with them.

#include <immintrin.h>
#include <stdint.h>

namespace {

// Tiles 0 to 3 are 16 x 16 sums; 4 and 5 have 16 rows of 16 pairs in BF16; 6 and 7 have 16 pairs of each of 16 columns.
// The destructor restores the thread's configuration: upstream's products set theirs once and rely on it.
class tile_config {
public:
    tile_config() {
        _tile_storeconfig(&before);
        __asm__ volatile ("" : "+m" (before));

        config tiles = { 1, 0, {}, {}, {} };
        for (int i = 0; i < 8; ++i) {
            tiles.colsb[i] = 64;
            tiles.rows[i]  = 16;
        }
        load(tiles);
    }

    ~tile_config() {
        if (before.palette == 0) {
            _tile_release();
        } else {
            load(before);
        }
    }

    tile_config(const tile_config &) = delete;

private:
    struct alignas(64) config {
        uint8_t  palette;
        uint8_t  start_row;
        uint8_t  reserved[14];
        uint16_t colsb[16];
        uint8_t  rows[16];
    };

    static void load(config & c) {
        __asm__ volatile ("" : "+m" (c)); // GCC before 14 takes ldtilecfg for a read of 8 bytes
        _tile_loadconfig(&c);
    }

    config before;
};

} // namespace
