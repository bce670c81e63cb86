// Panels of bytes by vectors.

#include "ggml/product/kernels/byte-panels.h"

namespace {

template <typename K, int N, int SPREAD, int H>
inline void multiply_half(const char * rows, const char * panels, int64_t panel_stride, vec_f (& sums)[N][ROWS/SPREAD]) {
    vec_i sum[N][ROWS/SPREAD];
    for (int p = 0; p < N; ++p) {
        for (vec_i & s : sum[p]) {
            s = STARTS<K> ? *(const vec_i_mem *) (panels + p*panel_stride + layout<K>::PANEL_SUMS + H*VL*4) : vec_i {};
        }
    }
    add_products<K, N, SPREAD, H>(rows, panels, panel_stride, sum);

    for (int p = 0; p < N; ++p) {
        add_scaled<K, SPREAD, H>(sum[p], rows, panels + p*panel_stride, sums[p]);
    }
}

// A group of rows by panels.
template <typename K>
struct byte_panels {
    static constexpr int PANEL_BLOCK = layout<K>::PANEL_BLOCK;
    static constexpr int ROWS_BLOCK  = layout<K>::ROWS_BLOCK;
    static constexpr int GROUP_ROWS  = ROWS;
    using setup = no_setup;

    static constexpr int AT_ONCE     = VL == 4 ? 3 : 2;
    static constexpr int AT_END      = VL == 8 ? 1 : 3;

    static constexpr bool SPREADS = MAX_DIRECT<K> < VL/2;

    template <int N, int SPREAD>
    static void add(const char * rows, const char * panels, int64_t panel_stride, int64_t n_blocks, vec_f (& sums)[N][ROWS/SPREAD]) {
        for (int64_t b = 0; b < n_blocks; ++b) {
            multiply_half<K, N, SPREAD, 0>(rows, panels, panel_stride, sums);
            if constexpr (K::SCALES == 2) {
                multiply_half<K, N, SPREAD, 1>(rows, panels, panel_stride, sums);
            }
            panels += PANEL_BLOCK;
            rows   += ROWS_BLOCK;
        }
    }
};

} // namespace
