// Panels of bytes by tiles of AMX: 16 rows by one panel, whose sums stay in registers. A tile's rows have 32 bytes,
// because each block has its own scale; with 64 bytes the product would take as long. While the products in one tile
// are scaled, those in another are computed.

#include "ggml/simd/amx.h"

namespace {

template <typename K>
struct tile_setup {
    const tile_config config { 32/K::SCALES };
};

// Multiplies half H of a block by the first or the second set of tiles.
template <typename K, bool IS_FIRST, int H>
inline void multiply_tiles(const char * rows, const char * panel, int32_t * products) {
    rows  += H*32/K::SCALES;
    panel += H*8/K::SCALES*VL*4;
    if constexpr (IS_FIRST) { // GCC needs literals for the numbers of tiles
        _tile_zero(0);
        _tile_loadd(4, rows, 32);
        _tile_loadd(6, panel, VL*4);
        _tile_dpbssd(0, 4, 6);
        _tile_stored(0, products, VL*4);
    } else {
        _tile_zero(1);
        _tile_loadd(5, rows, 32);
        _tile_loadd(7, panel, VL*4);
        _tile_dpbssd(1, 5, 7);
        _tile_stored(1, products, VL*4);
    }
}

template <typename K, int H>
inline void add_tile(const int32_t * products, const char * rows, const char * panel, vec_f (& sums)[GROUP]) {
    vec_i x[GROUP];
#pragma GCC unroll 16
    for (int r = 0; r < GROUP; ++r) {
        x[r] = *(const vec_i_mem *) (products + r*VL);
    }
    add_scaled<K, 1, H>(x, rows, panel, sums);
}

template <typename K>
struct byte_panels {
    static constexpr int PANEL_BLOCK = layout<K>::PANEL_BLOCK;
    static constexpr int ROWS_BLOCK  = layout<K>::ROWS_BLOCK;
    static constexpr int GROUP_ROWS  = GROUP;
    using setup = tile_setup<K>;

    static constexpr int AT_ONCE = 1;
    static constexpr int AT_END  = 1;

    static constexpr bool SPREADS = false;

    template <int N, int SPREAD>
    static void add(const char * rows, const char * panel, int64_t, int64_t n_blocks, vec_f (& sums)[N][GROUP]) {
        static_assert(N == 1 && SPREAD == 1, "");

        alignas(64) int32_t products[2][GROUP*VL];

        constexpr int AT_ONCE_BLOCKS = 2/K::SCALES; // halves of one block, or two blocks
        constexpr int NEXT           = AT_ONCE_BLOCKS - 1;

        for (; n_blocks >= AT_ONCE_BLOCKS; n_blocks -= AT_ONCE_BLOCKS) {
            multiply_tiles<K, true, 0>(rows, panel, products[0]);
            multiply_tiles<K, false, K::SCALES - 1>(rows + NEXT*ROWS_BLOCK, panel + NEXT*PANEL_BLOCK, products[1]);
            add_tile<K, 0>(products[0], rows, panel, sums[0]);
            add_tile<K, K::SCALES - 1>(products[1], rows + NEXT*ROWS_BLOCK, panel + NEXT*PANEL_BLOCK, sums[0]);
            rows  += AT_ONCE_BLOCKS*ROWS_BLOCK;
            panel += AT_ONCE_BLOCKS*PANEL_BLOCK;
        }
        if (n_blocks > 0) {
            multiply_tiles<K, true, 0>(rows, panel, products[0]);
            add_tile<K, 0>(products[0], rows, panel, sums[0]);
        }
    }
};

} // namespace
