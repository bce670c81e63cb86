// Directions of keys with vectors of VL floats. In the sums of a head stand the first numbers of all pairs, then the second ones,
// then what is in no pair.

#include "h2o-half-simd.h"
#include "h2o-keys-kernel.h"

#include "ggml-h2o-keys.h"

namespace {

constexpr int ROWS = 4; // keys at once

// Pairs from the j-th on of a key.
template <bool IS_INTERLEAVED>
struct pairs {
    vec_f a;
    vec_f b;

    template <int... J>
    static pairs split(vec_f x, vec_f y, indices<J...>) {
        return { shuffle<2*J...>(x, y), shuffle<2*J + 1 ...>(x, y) };
    }

    static pairs load_at(const float * k, int64_t n_pairs, int64_t j) {
        if constexpr (IS_INTERLEAVED) {
            (void) n_pairs;
            return split(load(k + 2*j), load(k + 2*j + VL), typename make_indices<VL>::type());
        } else {
            return { load(k + j), load(k + j + n_pairs) };
        }
    }
};

struct key_rows {
    const ggml_h2o_keys & keys;

    int64_t first; // key
    int64_t head;

    const float * k     (int r) const { return keys.k + ((first + r)*keys.n_head + head)*keys.d; }
    const float * cosine(int r) const { return keys.cosines + (first + r)*keys.n_pairs; }
    const float * sine  (int r) const { return keys.sines   + (first + r)*keys.n_pairs; }

    float first_of_pair (int r, int64_t j) const { return k(r)[keys.is_interleaved ? 2*j     : j]; }
    float second_of_pair(int r, int64_t j) const { return k(r)[keys.is_interleaved ? 2*j + 1 : j + keys.n_pairs]; }

    // float or vector
    template <typename T> static T turned_first (T a, T b, T c, T s) { return a*c + b*s; }
    template <typename T> static T turned_second(T a, T b, T c, T s) { return b*c - a*s; }
};

// All lanes are added up, those that differ in the bit STEP first.
template <int STEP, int... J>
inline float add_lanes(vec_f x, indices<J...> lanes) {
    x += shuffle<(J ^ STEP)...>(x, x);
    if constexpr (STEP > 1) {
        return add_lanes<STEP/2>(x, lanes);
    } else {
        return x[0];
    }
}

inline float add_lanes(vec_f x) {
    return add_lanes<VL/2>(x, typename make_indices<VL>::type());
}

inline float square_sum(const float * x, int64_t d) {
    vec_f   sum  = {};
    int64_t i    = 0;
    for (; i + VL <= d; i += VL) {
        const vec_f v = load(x + i);
        sum += v*v;
    }
    float res = add_lanes(sum);
    for (; i < d; ++i) {
        res += x[i]*x[i];
    }
    return res;
}

template <int M, bool IS_INTERLEAVED>
void add_rows(const key_rows & rows, const float * w, float * sums) {
    const int64_t n_pairs = rows.keys.n_pairs;

    float * sums_b = sums + n_pairs;

    int64_t j = 0;
    for (; j + VL <= n_pairs; j += VL) {
        vec_f a = load(sums   + j);
        vec_f b = load(sums_b + j);
        for (int r = 0; r < M; ++r) {
            const auto  x = pairs<IS_INTERLEAVED>::load_at(rows.k(r), n_pairs, j);
            const vec_f c = load(rows.cosine(r) + j)*w[r];
            const vec_f s = load(rows.sine  (r) + j)*w[r];
            a = a + x.a*c + x.b*s;
            b = b + x.b*c - x.a*s;
        }
        store(sums   + j, a);
        store(sums_b + j, b);
    }
    for (; j < n_pairs; ++j) {
        for (int r = 0; r < M; ++r) {
            const float a = rows.first_of_pair (r, j)*w[r];
            const float b = rows.second_of_pair(r, j)*w[r];
            sums  [j] += rows.turned_first (a, b, rows.cosine(r)[j], rows.sine(r)[j]);
            sums_b[j] += rows.turned_second(a, b, rows.cosine(r)[j], rows.sine(r)[j]);
        }
    }

    int64_t i = 2*n_pairs;
    for (; i + VL <= rows.keys.d; i += VL) {
        vec_f x = load(sums + i);
        for (int r = 0; r < M; ++r) {
            x += load(rows.k(r) + i)*w[r];
        }
        store(sums + i, x);
    }
    for (; i < rows.keys.d; ++i) {
        for (int r = 0; r < M; ++r) {
            sums[i] += rows.k(r)[i]*w[r];
        }
    }
}

template <int M, bool IS_INTERLEAVED>
void dot_rows(const key_rows & rows, const float * sums, float * dots) {
    const int64_t n_pairs = rows.keys.n_pairs;

    const float * sums_b = sums + n_pairs;

    vec_f dot [M] = {};
    float rest[M] = {};

    int64_t j = 0;
    for (; j + VL <= n_pairs; j += VL) {
        const vec_f a = load(sums   + j);
        const vec_f b = load(sums_b + j);
        for (int r = 0; r < M; ++r) {
            const auto  x = pairs<IS_INTERLEAVED>::load_at(rows.k(r), n_pairs, j);
            const vec_f c = load(rows.cosine(r) + j);
            const vec_f s = load(rows.sine  (r) + j);
            dot[r] += rows.turned_first (x.a, x.b, c, s)*a;
            dot[r] += rows.turned_second(x.a, x.b, c, s)*b;
        }
    }
    for (; j < n_pairs; ++j) {
        for (int r = 0; r < M; ++r) {
            const float a = rows.first_of_pair (r, j);
            const float b = rows.second_of_pair(r, j);
            rest[r] += rows.turned_first (a, b, rows.cosine(r)[j], rows.sine(r)[j])*sums  [j];
            rest[r] += rows.turned_second(a, b, rows.cosine(r)[j], rows.sine(r)[j])*sums_b[j];
        }
    }

    int64_t i = 2*n_pairs;
    for (; i + VL <= rows.keys.d; i += VL) {
        const vec_f x = load(sums + i);
        for (int r = 0; r < M; ++r) {
            dot[r] += load(rows.k(r) + i)*x;
        }
    }
    for (; i < rows.keys.d; ++i) {
        for (int r = 0; r < M; ++r) {
            rest[r] += rows.k(r)[i]*sums[i];
        }
    }

    for (int r = 0; r < M; ++r) {
        dots[r*rows.keys.n_head] = add_lanes(dot[r]) + rest[r];
    }
}

// f(constant<number of keys>, whether pairs are interleaved, rows) for all keys and heads
template <typename F>
void for_rows(const ggml_h2o_keys & keys, const F & f) {
    for (int64_t i = 0; i < keys.n; i += ROWS) {
        with_constant<ROWS>((int) min_of(ROWS, keys.n - i), [&](auto c) {
            for (int64_t h = 0; h < keys.n_head; ++h) {
                f(c, key_rows { keys, i, h });
            }
        });
    }
}

void add(const ggml_h2o_keys & keys, float * inv_norms, float * sums) {
    for_rows(keys, [&](auto c, const key_rows & rows) {
        constexpr int M = decltype(c)::value;

        float w[M];
        for (int r = 0; r < M; ++r) {
            const float sum = square_sum(rows.k(r), keys.d);

            w[r] = sum > 0.0f ? 1.0f/__builtin_sqrtf(sum) : 0.0f;
            inv_norms[(rows.first + r)*keys.n_head + rows.head] = w[r];
        }
        keys.is_interleaved ?
            add_rows<M, true> (rows, w, sums + rows.head*keys.d) :
            add_rows<M, false>(rows, w, sums + rows.head*keys.d);
    });
}

void dot(const ggml_h2o_keys & keys, const float * sums, float * dots) {
    for_rows(keys, [&](auto c, const key_rows & rows) {
        constexpr int M = decltype(c)::value;

        float * dst = dots + rows.first*keys.n_head + rows.head;
        keys.is_interleaved ?
            dot_rows<M, true> (rows, sums + rows.head*keys.d, dst) :
            dot_rows<M, false>(rows, sums + rows.head*keys.d, dst);
    });
}

// Lanes that differ in the bit STEP: their sum, and their difference where the bit is 1.
template <int STEP, int... J>
inline vec_f add_and_subtract(vec_f x, indices<J...>) {
    return x*vec_f { (J & STEP ? -1.0f : 1.0f)... } + shuffle<(J ^ STEP)...>(x, x);
}

template <int STEP = VL/2>
inline vec_f hadamard(vec_f x) {
    x = add_and_subtract<STEP>(x, typename make_indices<VL>::type());
    if constexpr (STEP > 1) {
        return hadamard<STEP/2>(x);
    }
    return x;
}

void hadamard(float * x, int64_t n, int64_t size) {
    const float scale = 1.0f/__builtin_sqrtf(size);

    for (float * block = x; block < x + n; block += size) {
        for (int64_t step = size/2; step >= VL; step /= 2) {
            for (int64_t i = 0; i < size; i += VL) {
                if ((i & step) == 0) {
                    const vec_f a = load(block + i);
                    const vec_f b = load(block + i + step);
                    store(block + i,        a + b);
                    store(block + i + step, a - b);
                }
            }
        }
        for (int64_t i = 0; i < size; i += VL) {
            store(block + i, hadamard<>(load(block + i))*scale);
        }
    }
}

void widen(const void * x, int64_t n, float * y) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        store(y + i, load_half((const char *) x + 2*i));
    }
    for (; i < n; ++i) {
        y[i] = half_at((const char *) x + 2*i);
    }
}

const h2o_keys_kernel kernel = { add, dot, hadamard, widen };

} // namespace

const h2o_keys_kernel * const KERNEL = &kernel;
