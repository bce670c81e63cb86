// Directions of keys with vectors of VL floats. In the sums of a head stand the first numbers of all pairs, then the second ones,
// then what is in no pair.

#include "ggml/simd/half.h"
#include "ggml/keys/kernels/kernel.h"

#include "ggml/keys/keys.h"

namespace {

constexpr int ROWS = 4; // keys at once

struct half {
    uint16_t bits;
};

inline vec_f load(const half * x) {
    return load_half(x);
}

inline float number(const float * x) {
    return *x;
}

inline float number(const half * x) {
    return half_at(x);
}

// Pairs from the j-th on of a key.
template <bool IS_INTERLEAVED>
struct pairs {
    vec_f a;
    vec_f b;

    template <int... J>
    static pairs split(vec_f x, vec_f y, indices<J...>) {
        return { shuffle<2*J...>(x, y), shuffle<2*J + 1 ...>(x, y) };
    }

    template <typename K>
    static pairs load_at(const K * k, int64_t n_pairs, int64_t j) {
        if constexpr (IS_INTERLEAVED) {
            (void) n_pairs;
            return split(load(k + 2*j), load(k + 2*j + VL), typename make_indices<VL>::type());
        } else {
            return { load(k + j), load(k + j + n_pairs) };
        }
    }
};

// A head of some keys, of numbers of type K. By value: what is stored to sums could otherwise change it.
template <typename K>
struct key_rows {
    const K     * key;
    const float * cosines;
    const float * sines;

    int64_t stride; // from key to key
    int64_t d;
    int64_t n_pairs;

    key_rows(const ggml_h2o_keys & keys, int64_t first, int64_t head)
        : key((const K *) keys.k + (first*keys.n_head + head)*keys.d), cosines(keys.cosines + first*keys.n_pairs), sines(keys.sines + first*keys.n_pairs),
          stride(keys.n_head*keys.d), d(keys.d), n_pairs(keys.n_pairs) {}

    const K     * k     (int r) const { return key     + r*stride; }
    const float * cosine(int r) const { return cosines + r*n_pairs; }
    const float * sine  (int r) const { return sines   + r*n_pairs; }

    float number_at(int r, int64_t i) const { return number(k(r) + i); }

    template <bool IS_INTERLEAVED> float first_of_pair (int r, int64_t j) const { return number_at(r, IS_INTERLEAVED ? 2*j     : j); }
    template <bool IS_INTERLEAVED> float second_of_pair(int r, int64_t j) const { return number_at(r, IS_INTERLEAVED ? 2*j + 1 : j + n_pairs); }

    // float or vector
    template <typename T> static T turned_first (T a, T b, T c, T s) { return a*c + b*s; }
    template <typename T> static T turned_second(T a, T b, T c, T s) { return b*c - a*s; }
};

// Of every 2*STEP lanes the halves are added up: x's sums, then y's.
template <int STEP, int... J>
inline vec_f fold(vec_f x, vec_f y, indices<J...>) {
    return shuffle<((J & STEP) ? VL + J - STEP : J)...>(x, y) + shuffle<((J & STEP) ? VL + J : J + STEP)...>(x, y);
}

// of blocks of 2*STEP lanes
template <int STEP, int... J>
inline vec_f add_blocks(vec_f x, indices<J...> lanes) {
    if constexpr (STEP > 0) {
        return add_blocks<STEP/2>(x + shuffle<(J ^ STEP)...>(x, x), lanes);
    }
    return x;
}

// All lanes of each vector are added up.
inline void add_lanes(const vec_f (& x)[ROWS], float (& sum)[ROWS]) {
    const auto lanes = make_indices<VL>::type();

    const vec_f blocks = add_blocks<VL/ROWS/2>(fold<VL/4>(fold<VL/2>(x[0], x[2], lanes), fold<VL/2>(x[1], x[3], lanes), lanes), lanes);
    for (int r = 0; r < ROWS; ++r) {
        sum[r] = blocks[r*VL/ROWS];
    }
}

// squares of keys, added up
template <int M, typename K>
inline void square_sums(const key_rows<K> & rows, float (& dst)[ROWS]) {
    vec_f sum[ROWS] = {};

    int64_t i = 0;
    for (; i + VL <= rows.d; i += VL) {
        for (int r = 0; r < M; ++r) {
            const vec_f v = load(rows.k(r) + i);
            sum[r] += v*v;
        }
    }
    add_lanes(sum, dst);
    for (int r = 0; r < M; ++r) {
        for (int64_t j = i; j < rows.d; ++j) {
            dst[r] += rows.number_at(r, j)*rows.number_at(r, j);
        }
    }
}

template <int M, bool IS_INTERLEAVED, typename K>
void add_rows(const key_rows<K> & rows, const float * w, float * sums) {
    const int64_t n_pairs = rows.n_pairs;

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
            const float a = rows.template first_of_pair <IS_INTERLEAVED>(r, j)*w[r];
            const float b = rows.template second_of_pair<IS_INTERLEAVED>(r, j)*w[r];
            sums  [j] += rows.turned_first (a, b, rows.cosine(r)[j], rows.sine(r)[j]);
            sums_b[j] += rows.turned_second(a, b, rows.cosine(r)[j], rows.sine(r)[j]);
        }
    }

    int64_t i = 2*n_pairs;
    for (; i + VL <= rows.d; i += VL) {
        vec_f x = load(sums + i);
        for (int r = 0; r < M; ++r) {
            x += load(rows.k(r) + i)*w[r];
        }
        store(sums + i, x);
    }
    for (; i < rows.d; ++i) {
        for (int r = 0; r < M; ++r) {
            sums[i] += rows.number_at(r, i)*w[r];
        }
    }
}

template <int M, bool IS_INTERLEAVED, typename K>
void dot_rows(const key_rows<K> & rows, const float * sums, float * dots, int64_t dots_stride) {
    const int64_t n_pairs = rows.n_pairs;

    const float * sums_b = sums + n_pairs;

    vec_f dot [ROWS] = {};
    float rest[ROWS] = {};

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
            const float a = rows.template first_of_pair <IS_INTERLEAVED>(r, j);
            const float b = rows.template second_of_pair<IS_INTERLEAVED>(r, j);
            rest[r] += rows.turned_first (a, b, rows.cosine(r)[j], rows.sine(r)[j])*sums  [j];
            rest[r] += rows.turned_second(a, b, rows.cosine(r)[j], rows.sine(r)[j])*sums_b[j];
        }
    }

    int64_t i = 2*n_pairs;
    for (; i + VL <= rows.d; i += VL) {
        const vec_f x = load(sums + i);
        for (int r = 0; r < M; ++r) {
            dot[r] += load(rows.k(r) + i)*x;
        }
    }
    for (; i < rows.d; ++i) {
        for (int r = 0; r < M; ++r) {
            rest[r] += rows.number_at(r, i)*sums[i];
        }
    }

    float sum[ROWS];
    add_lanes(dot, sum);
    for (int r = 0; r < M; ++r) {
        dots[r*dots_stride] = sum[r] + rest[r];
    }
}

template <typename K>
inline void prefetch(const K * x, int64_t n) {
    for (int64_t i = 0; i < n; i += 64/sizeof(K)) {
        __builtin_prefetch(x + i);
    }
}

// f(constant<number of keys>, rows, the first key, head) for all keys and heads
template <typename K, typename F>
void for_rows(const ggml_h2o_keys & keys, const F & f) {
    for (int64_t i = 0; i < keys.n; i += ROWS) {
        with_constant<ROWS>((int) min_of(ROWS, keys.n - i), [&](auto c) {
            for (int64_t h = 0; h < keys.n_head; ++h) {
                const key_rows<K> rows(keys, i, h);
                for (int r = 0; r < decltype(c)::value; ++r) {
                    prefetch(rows.k(ROWS + r), keys.d); // may be after the last one
                }
                f(c, rows, i, h);
            }
        });
    }
}

template <bool IS_INTERLEAVED, typename K>
void add_keys(const ggml_h2o_keys & keys, float * inv_norms, float * sums) {
    for_rows<K>(keys, [&](auto c, const key_rows<K> & rows, int64_t i, int64_t h) {
        constexpr int M = decltype(c)::value;

        float w[ROWS];
        square_sums<M>(rows, w);
        for (int r = 0; r < M; ++r) {
            w[r] = w[r] > 0.0f ? 1.0f/__builtin_sqrtf(w[r]) : 0.0f;
            inv_norms[(i + r)*keys.n_head + h] = w[r];
        }
        add_rows<M, IS_INTERLEAVED>(rows, w, sums + h*keys.d);
    });
}

template <bool IS_INTERLEAVED, typename K>
void dot_keys(const ggml_h2o_keys & keys, const float * sums, float * dots) {
    for_rows<K>(keys, [&](auto c, const key_rows<K> & rows, int64_t i, int64_t h) {
        dot_rows<decltype(c)::value, IS_INTERLEAVED>(rows, sums + h*keys.d, dots + i*keys.n_head + h, keys.n_head);
    });
}

void add(const ggml_h2o_keys & keys, float * inv_norms, float * sums) {
    const auto f = keys.is_f16 ?
        (keys.is_interleaved ? add_keys<true, half>  : add_keys<false, half>) :
        (keys.is_interleaved ? add_keys<true, float> : add_keys<false, float>);
    f(keys, inv_norms, sums);
}

void dot(const ggml_h2o_keys & keys, const float * sums, float * dots) {
    const auto f = keys.is_f16 ?
        (keys.is_interleaved ? dot_keys<true, half>  : dot_keys<false, half>) :
        (keys.is_interleaved ? dot_keys<true, float> : dot_keys<false, float>);
    f(keys, sums, dots);
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
