// What NEON's two kinds of steps have in common: both multiply signed bytes by signed ones.

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

// numbers as they are multiplied
template <typename K>
inline bytes<1> signed_bytes(bytes<1> w) {
    return LARGE<K> ? w ^ 128 : w;
}

template <typename K>
inline vec_i dot(vec_i first, vec_i w, vec_i x) {
    return multiply_add(first, LARGE<K> ? w ^ (int) 0x80808080 : w, x);
}

} // namespace
