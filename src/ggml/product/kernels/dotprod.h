// Steps of products by the instructions that multiply signed bytes by signed ones.

#include "ggml/product/kernels/steps.h"

namespace {

template <typename K>
constexpr int N_STEPS = 8;

// of 8 bits, which are made signed
template <typename K>
constexpr bool LARGE = K::BITS == 8;

template <typename K>
constexpr bool FIRST = K::ZERO != 0 && !LARGE<K>;

// more columns are multiplied faster in panels
template <typename K>
constexpr int MAX_DIRECT = 4;

// what steps depend on
template <typename K>
using steps_of = number_kind<LARGE<K> ? 8 : 7, K::ZERO != 0, K::SCALES, K::MINS>;

inline vec_i multiply_add(vec_i sum, vec_i w, vec_i x) {
    return (vec_i) vdotq_s32((int32x4_t) sum, (int8x16_t) w, (int8x16_t) x);
}

inline vec_i add_bytes(vec_i sum, vec_i x) {
    return multiply_add(sum, vec_i {} + 0x01010101, x);
}

template <typename K>
inline void widen_columns(const vec_f * x, char * block) {
    for (int j = 0; j < 8; ++j) {
        store((float *) (block + j*VL*4), x[j]);
    }
}

template <typename K>
inline void widen_rows(const bytes<1> * w, char * dst) {
    if (!LARGE<K>) {
        return interleave(w, dst);
    }
    bytes<1> s[ROWS];
    for (int i = 0; i < ROWS; ++i) {
        s[i] = w[i] ^ 128;
    }
    interleave(s, dst);
}

template <typename K, int N, int SPREAD, int H>
inline void add_products(const char * rows, const char * panels, int64_t panel_stride, vec_i (& sum)[N][ROWS/SPREAD]) {
#pragma GCC unroll 1
    for (int j = H*8/K::SCALES; j < (H + 1)*8/K::SCALES; ++j) {
        for_step<N, SPREAD>(rows, panels, panel_stride, j, [&](int p, int r, vec_i w, vec_i x) {
            sum[p][r] = multiply_add(sum[p][r], w, x);
        });
    }
}

template <typename K>
inline vec_i dot(vec_i first, vec_i w, vec_i x) {
    return multiply_add(first, LARGE<K> ? w ^ (int) 0x80808080 : w, x);
}

} // namespace
