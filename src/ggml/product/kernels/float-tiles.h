// Panels of pairs of numbers in BF16 by tiles of AMX: 16 rows by four panels, so that four sums are under way. Rows lie in a tile as in
// the file, and are only brought together.

#include "ggml/product/kernels/float-panels.h"
#include "ggml/simd/amx.h"

namespace {

// The compiler wants tiles' numbers as they are written. Of panel P, B is the tile for its columns.
#define LOAD_SUMS(P, B)  if constexpr (P < N) { _tile_loadd(P, sums[P], VL*4); }
#define STORE_SUMS(P, B) if constexpr (P < N) { _tile_stored(P, sums[P], VL*4); }
#define MULTIPLY(P, B)   if constexpr (P < N) { _tile_loadd(B, panels + P*panel_stride, VL*4); _tile_dpbf16ps(P, 4, B); }
#define FOR_PANELS(STEP) STEP(0, 6) STEP(1, 7) STEP(2, 6) STEP(3, 7)

struct float_tiles {
    static constexpr int PANEL_BLOCK = FLOAT_BLOCK*VL;
    static constexpr int GROUP_ROWS  = 16;
    static constexpr int ROWS_BLOCK  = FLOAT_BLOCK*GROUP_ROWS;
    static constexpr int AT_ONCE     = 4;
    static constexpr int AT_END      = 4;

    static constexpr bool SPREADS = false;

    struct setup {
        const tile_config config { FLOAT_BLOCK };
    };

    template <int N, int SPREAD>
    static void add(const char * rows, const char * panels, int64_t panel_stride, int64_t n_blocks, vec_f (& sums)[N][GROUP_ROWS]) {
        static_assert(N <= 4 && SPREAD == 1, "");

        __asm__ volatile ("" : : : "memory"); // the compiler does not know that tiles are loaded from sums
        FOR_PANELS(LOAD_SUMS);
        for (int64_t b = 0; b < n_blocks; ++b, rows += ROWS_BLOCK, panels += PANEL_BLOCK) {
            _tile_loadd(4, rows, FLOAT_BLOCK);
            FOR_PANELS(MULTIPLY);
        }
        FOR_PANELS(STORE_SUMS);
    }
};

inline void copy_rows(const char * rows, int64_t stride, int n, int64_t n_blocks, char * dst) {
    for (int64_t b = 0; b < n_blocks; ++b) {
        for (int r = 0; r < float_tiles::GROUP_ROWS; ++r, dst += FLOAT_BLOCK) {
            const char * block = rows + min_of(r, n - 1)*stride + b*FLOAT_BLOCK;
            __builtin_memcpy(dst, block, FLOAT_BLOCK);
            __builtin_prefetch(block + float_tiles::GROUP_ROWS*stride, 0, 3); // of the next group
        }
    }
}

} // namespace
