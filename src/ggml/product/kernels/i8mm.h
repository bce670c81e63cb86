// Steps of products by the instruction that multiplies 2 rows of 8 signed bytes by 2 columns of them. Panels and groups hold 8 bytes of
// each column or row side by side.

#include "ggml/product/kernels/signed-bytes.h"

namespace {

template <typename K>
constexpr int N_STEPS = 8;

inline vec_i add_bytes(vec_i sum, vec_i x) {
    return multiply_add(sum, vec_i {} + 0x01010101, x);
}

// the first or the second half of a, then that of b
inline vec_i first_halves(vec_i a, vec_i b) {
    return (vec_i) vzip1q_s64((int64x2_t) a, (int64x2_t) b);
}

inline vec_i second_halves(vec_i a, vec_i b) {
    return (vec_i) vzip2q_s64((int64x2_t) a, (int64x2_t) b);
}

template <typename K>
inline void widen_columns(const vec_f * x, char * block) {
    for (int j = 0; j < 8; j += 2) {
        vst1q_f32((float *) (block + j*16),      vzip1q_f32((float32x4_t) x[j], (float32x4_t) x[j + 1])); // columns 0 and 1
        vst1q_f32((float *) (block + j*16 + 16), vzip2q_f32((float32x4_t) x[j], (float32x4_t) x[j + 1]));
    }
}

template <typename K>
inline void widen_rows(const bytes<1> * w, char * dst) {
    for (int r = 0; r < ROWS; r += 2) {
        const bytes<1> a = signed_bytes<K>(w[r]);
        const bytes<1> b = signed_bytes<K>(w[r + 1]);
        for (int h = 0; h < 2; ++h) {
            *(vec_i_mem *) (dst + h*64 + r*8)      = first_halves ((vec_i) a.v[h], (vec_i) b.v[h]);
            *(vec_i_mem *) (dst + h*64 + r*8 + 32) = second_halves((vec_i) a.v[h], (vec_i) b.v[h]);
        }
    }
}

template <typename K, int N, int SPREAD, int H>
inline void add_products(const char * rows, const char * panels, int64_t panel_stride, vec_i (& sum)[N][ROWS/SPREAD]) {
    static_assert(SPREAD == 1, "");

    int32x4_t pair[N][2][2] = {}; // of rows by columns
#pragma GCC unroll 1
    for (int j = H*4/K::SCALES; j < (H + 1)*4/K::SCALES; ++j) {
        for (int r = 0; r < 2; ++r) {
            const int8x16_t w = vld1q_s8((const int8_t *) rows + j*32 + r*16);
            for (int p = 0; p < N; ++p) {
                for (int c = 0; c < 2; ++c) {
                    pair[p][r][c] = vmmlaq_s32(pair[p][r][c], w, vld1q_s8((const int8_t *) panels + p*panel_stride + j*32 + c*16));
                }
            }
        }
    }
    for (int p = 0; p < N; ++p) {
        for (int r = 0; r < 2; ++r) {
            sum[p][2*r]     += first_halves ((vec_i) pair[p][r][0], (vec_i) pair[p][r][1]);
            sum[p][2*r + 1] += second_halves((vec_i) pair[p][r][0], (vec_i) pair[p][r][1]);
        }
    }
}

} // namespace
