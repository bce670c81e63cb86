#pragma once

// Vectors of VL floats. The file that includes this defines VL.

#include <stdint.h>

namespace {

typedef float    vec_f __attribute__((vector_size(VL*4)));
typedef int32_t  vec_i __attribute__((vector_size(VL*4)));
typedef uint32_t vec_u __attribute__((vector_size(VL*4)));

typedef float   vec_f_mem __attribute__((vector_size(VL*4), aligned(4), may_alias));
typedef int32_t vec_i_mem __attribute__((vector_size(VL*4), aligned(4), may_alias));
typedef float   vec_f_bytes __attribute__((vector_size(VL*4), aligned(1), may_alias)); // at any address

inline vec_f load(const float * x) {
    return *(const vec_f_mem *) x;
}

inline void store(float * x, vec_f v) {
    *(vec_f_mem *) x = v;
}

inline vec_f broadcast(float x) {
    return x - vec_f {};
}

constexpr int64_t min_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}

constexpr int64_t max_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

template <int N>
struct constant {
    static constexpr int value = N;
};

// f(constant<n>()), n from 1 to N
template <int N, typename F>
inline void with_constant(int n, const F & f) {
    if constexpr (N > 1) {
        if (n < N) {
            return with_constant<N - 1>(n, f);
        }
    }
    f(constant<N>());
}

template <int... J>
struct indices {};

template <int N, int... J>
struct make_indices : make_indices<N - 1, N - 1, J...> {};

template <int... J>
struct make_indices<0, J...> {
    typedef indices<J...> type;
};

// The lanes with these numbers; b's lanes follow a's.
template <int... LANE>
inline vec_f shuffle(vec_f a, vec_f b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, LANE...);
#else
    return __builtin_shuffle(a, b, vec_i { LANE... });
#endif
}

// Swaps the blocks of STEP lanes off the diagonal of every 2 x 2 blocks.
template <int STEP, int N, int... J>
inline void swap_blocks(vec_f * row, indices<J...>) {
    for (int i = 0; i < N; ++i) {
        if ((i & STEP) == 0) {
            const vec_f a = row[i];
            const vec_f b = row[i + STEP];
            row[i]        = shuffle<((J & STEP) ? VL + J - STEP : J)...>(a, b);
            row[i + STEP] = shuffle<((J & STEP) ? VL + J : J + STEP)...>(a, b);
        }
    }
}

// row[i][j] becomes row[j][i]; of N rows, in every N lanes
template <int N = VL, int STEP = N/2>
inline void transpose(vec_f * row) {
    swap_blocks<STEP, N>(row, typename make_indices<VL>::type());
    if constexpr (STEP > 1) {
        transpose<N, STEP/2>(row);
    }
}

// The sums of two lanes whose numbers differ in the bit STEP: a's lanes where the bit is 0, b's where it is 1.
template <int STEP, int... J>
inline vec_f add_pairs(vec_f a, vec_f b, indices<J...>) {
    return shuffle<((J & STEP) ? VL + J - STEP : J)...>(a, b) + shuffle<((J & STEP) ? VL + J : J + STEP)...>(a, b);
}

template <int STEP>
inline vec_f add_pairs(vec_f a, vec_f b) {
    return add_pairs<STEP>(a, b, typename make_indices<VL>::type());
}

// e^x for x <= 0, 0 below the smallest normal number, NaN for NaN: 2^n*2^r, x = (n + r)*ln(2), 2^r by a polynomial.
inline vec_f exp_negative(vec_f x) {
    const float round = 12582912.0f; // 1.5*2^23: a sum with it has no fraction, and the integer in its low bits

    const vec_f z = x*1.44269504088896341f + round;
    const vec_f r = x*1.44269504088896341f - (z - round);

    vec_f p = broadcast(1.3264714507e-3f);
    p = p*r + 9.6715129912e-3f;
    p = p*r + 5.5507339537e-2f;
    p = p*r + 2.4022242427e-1f;
    p = p*r + 6.9314700365e-1f;
    p = p*r + 1.0f;

    const vec_f power = (vec_f) (((vec_u) z << 23) + 0x3f800000);

    return (vec_f) ((vec_i) (p*power) & ~(x < -87.33654f));
}

// whether a lane is one of the first n
inline vec_i lanes_below(int64_t n) {
    vec_i lane;
    for (int j = 0; j < VL; ++j) {
        lane[j] = j;
    }
    return lane < (int32_t) n;
}

// the first n lanes of x, zeros in the others
inline vec_f first_lanes(vec_f x, int64_t n) {
    return (vec_f) ((vec_i) x & lanes_below(n));
}

// b if a is NaN
inline vec_f min(vec_f a, vec_f b) {
    return a < b ? a : b;
}

inline vec_f max(vec_f a, vec_f b) {
    return a > b ? a : b;
}

template <int STEP, int... J>
inline vec_f rotate(vec_f x, indices<J...>) {
    return shuffle<(J + STEP)%VL...>(x, x);
}

// f of all lanes, in every lane
template <int STEP = VL/2, typename F>
inline vec_f fold(vec_f x, const F & f) {
    x = f(x, rotate<STEP>(x, typename make_indices<VL>::type()));
    if constexpr (STEP > 1) {
        return fold<STEP/2>(x, f);
    } else {
        return x;
    }
}

} // namespace
