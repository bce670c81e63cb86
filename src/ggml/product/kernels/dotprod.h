// Steps of products by the instructions that multiply signed bytes by signed ones.

#include "ggml/product/kernels/steps.h"

namespace {

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

} // namespace

#include "ggml/product/kernels/byte-steps.h"

namespace {

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

template <typename K>
inline vec_i dot(vec_i first, vec_i w, vec_i x) {
    return multiply_add(first, LARGE<K> ? w ^ (int) 0x80808080 : w, x);
}

} // namespace
