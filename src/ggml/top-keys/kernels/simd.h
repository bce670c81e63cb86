// Scores and their selection with vectors of VL floats. The file that includes this defines KERNEL, the kernel's name.

#include "ggml/top-keys/kernels/kernel.h"
#include "ggml/top-keys/kernels/steps.h"

namespace {

constexpr int NQ = VL == 16 ? 8 : 4; // queries that are scored at once: they fit into the registers

constexpr int64_t BLOCK_SIZE = h2o_index_panel_size(VL, H2O_INDEX_BLOCK); // of a panel

// 16 bytes of VL keys, each offset bytes after the key's beginning: of each key 4 bytes, the next 4, ...
inline void load_bytes(const char * const * keys, int64_t offset, vec_f * bytes) {
    for (int i = 0; i < 4; ++i) {
        bytes[i] = load_rows(keys + i, offset);
    }
    transpose<4>(bytes);
}

// Numbers of 8 bits in 4, as ggml rounds to Q4_0: bytes [8] of the keys become the first 4. Returns what to multiply the
// scales by.
inline vec_f round_to_4_bits(vec_f * bytes) {
    const auto number = [&](int i) { return ((vec_i) bytes[i/4] << (24 - i%4*8)) >> 24; };

    vec_i low  = number(0);
    vec_i high = low;
    for (int i = 1; i < H2O_INDEX_BLOCK; ++i) {
        const vec_i x = number(i);
        low  = x < low  ? x : low;
        high = x > high ? x : high;
    }
    const vec_f peak  = __builtin_convertvector(high > -low ? high : low, vec_f);
    const vec_f steps = peak == 0.0f ? peak : -8.0f/peak; // of a unit

    const auto rounded = [&](int i) { // a tie up; they are integers, so that others are further from it than this
        const vec_i x = __builtin_convertvector(__builtin_convertvector(number(i), vec_f)*steps + 8.501f, vec_i);
        return x < 15 ? x : vec_i {} + 15;
    };
    for (int i = 0; i < 4; ++i) {
        vec_i packed = {};
        for (int j = 0; j < 4; ++j) {
            packed |= (rounded(4*i + j) | rounded(16 + 4*i + j) << 4) << 8*j;
        }
        bytes[i] = (vec_f) packed;
    }
    return peak*-0.125f;
}

// A block of VL keys, each offset bytes after the key's beginning.
inline void pack_block(const char * const * keys, int64_t offset, bool is_q8_0, char * dst) {
    uint16_t halves[VL];
    for (int v = 0; v < VL; ++v) {
        __builtin_memcpy(halves + v, keys[v] + offset, sizeof(halves[v]));
    }
    vec_f scales = widen_halves(halves);

    vec_f bytes[8];
    load_bytes(keys, offset + sizeof(halves[0]), bytes);
    if (is_q8_0) {
        load_bytes(keys, offset + sizeof(halves[0]) + 16, bytes + 4);
        scales *= round_to_4_bits(bytes);
    }

    float * out = (float *) dst;
    store(out, scales);
    for (int i = 0; i < 4; ++i) {
        store(out + (1 + i)*VL, bytes[i]);
    }
}

void pack(const char * keys, int64_t stride, int64_t n, int64_t d, bool is_q8_0, char * panels) {
    const int64_t n_blocks    = d/H2O_INDEX_BLOCK;
    const int64_t block_bytes = is_q8_0 ? H2O_INDEX_Q8_0_BYTES : H2O_INDEX_Q4_0_BYTES;

    for (int64_t key = 0; key < n; key += VL) {
        const char * src[VL];
        for (int v = 0; v < VL; ++v) {
            src[v] = keys + min_of(key + v, n - 1)*stride;
        }

        float * first_scales = (float *) panels;
        for (int64_t b = 0; b < n_blocks; ++b) {
            pack_block(src, b*block_bytes, is_q8_0, panels);
            panels += BLOCK_SIZE;
        }
        for (int64_t v = n - key; v < VL; ++v) {
            first_scales[v] = __builtin_nanf("");
        }
    }
}

// A panel's block in registers.
struct key_block {
    vec_i low [4]; // numbers 4*j to 4*j + 3 of each key
    vec_i high[4]; // 16 more

    explicit key_block(const char * src) {
        for (int j = 0; j < 4; ++j) {
            const vec_i bytes = *(const vec_i_mem *) (src + j*VL*4);
            low [j] = bytes & 0x0f0f0f0f;
            high[j] = bytes >> 4 & 0x0f0f0f0f;
        }
    }

    // sums of products with a query's block
    vec_i dot(const h2o_index_query & q) const {
        const auto numbers = [&](int i) {
            int32_t x;
            __builtin_memcpy(&x, q.x + i, sizeof(x));
            return x + vec_i {};
        };
        vec_i sum[2] = {};
        for (int j = 0; j < 4; ++j) {
            sum[0] = add_products(sum[0], low [j], numbers(4*j));
            sum[1] = add_products(sum[1], high[j], numbers(4*j + 16));
        }
        return sums_of(sum[0], sum[1]) + q.offset;
    }
};

// Scores of N queries with a panel's keys.
template <int N>
inline void score_panel(const char * panel, int64_t n_blocks, const h2o_index_query * q, vec_f (& sum)[N]) {
    for (int64_t b = 0; b < n_blocks; ++b) {
        const vec_f     scale = load((const float *) panel);
        const key_block keys(panel + VL*sizeof(float));

        for (int i = 0; i < N; ++i) {
            sum[i] += __builtin_convertvector(keys.dot(q[i*n_blocks + b]), vec_f)*scale;
        }
        panel += BLOCK_SIZE;
    }
}

// f(constant<number of queries>, first query) for as many queries as have their sums in registers
template <typename F>
inline void for_queries(int64_t n_q, const F & f) {
    for (int64_t i = 0; i < n_q; i += NQ) {
        with_constant<NQ>((int) min_of(NQ, n_q - i), [&](auto n) { f(n, i); });
    }
}

void score(const char * panels, int64_t n_panels, int64_t d, const h2o_index_query * q, int64_t n_q,
        const float * factors, const float * offsets, float * scores) {
    const int64_t n_blocks = d/H2O_INDEX_BLOCK;

    for_queries(n_q, [&](auto n, int64_t first) {
        constexpr int N = decltype(n)::value;

        for (int64_t p = 0; p < n_panels; ++p) {
            vec_f sum[N] = {};
            score_panel(panels + p*n_blocks*BLOCK_SIZE, n_blocks, q + first*n_blocks, sum);

            vec_f high = first > 0 ? load(scores + p*VL) : broadcast(-__builtin_inff());
            for (int i = 0; i < N; ++i) {
                high = max((sum[i] - offsets[first + i])*factors[first + i], high);
            }
            store(scores + p*VL, high);
        }
    });
}

// Floats as integers in the same order, and back. NaN lies beyond the infinities.
inline int64_t order_of(float x) {
    int32_t i;
    __builtin_memcpy(&i, &x, sizeof(i));
    return i ^ (i >> 31 & 0x7fffffff);
}

inline float float_of(int64_t order) {
    const int32_t i = (int32_t) order ^ ((int32_t) order >> 31 & 0x7fffffff);
    float x;
    __builtin_memcpy(&x, &i, sizeof(x));
    return x;
}

// of counts below 0
inline int64_t count_of(vec_i x) {
    return -((vec_i) fold((vec_f) x, [](vec_f a, vec_f b) { return (vec_f) ((vec_i) a + (vec_i) b); }))[0];
}

// n is a multiple of VL from here on
template <typename F>
int64_t count_if(const float * x, int64_t n, const F & is_counted) {
    vec_i count = {};
    for (int64_t i = 0; i < n; i += VL) {
        count += is_counted(load(x + i));
    }
    return count_of(count);
}

// A number that at least k of x reach, and at most k + slack of them if there is such a number; else the k-th largest.
// Where fewer than k are numbers, -inf.
//
// Guesses interpolate: the logarithm of the count falls nearly linearly. Every third step is a bisection, so that the
// search ends soon whatever x is.
float find_threshold(const float * x, int64_t n, int64_t k, int64_t slack) {
    vec_f low   = broadcast( __builtin_inff());
    vec_f high  = broadcast(-__builtin_inff());
    vec_i count = {};
    for (int64_t i = 0; i < n; i += VL) {
        const vec_f v = load(x + i);
        low    = min(v, low);
        high   = max(v, high);
        count += v == v;
    }
    int64_t n_reached = count_of(count);
    if (n_reached < k) {
        return -__builtin_inff();
    }

    int64_t reached  = order_of(fold(low,  min)[0]);
    int64_t missed   = order_of(fold(high, max)[0]) + 1;
    float   n_missed = 0.5f;

    const float aim = (float) k + 0.5f*(float) slack;
    for (int step = 1; missed - reached > 1 && n_reached > k + slack; ++step) {
        const float share = __builtin_logf((float) n_reached/aim)/__builtin_logf((float) n_reached/n_missed);
        const float guess = float_of(reached) + (float_of(missed) - float_of(reached))*share;

        const int64_t middle = step%3 == 0 ? reached + (missed - reached)/2 : min_of(max_of(order_of(guess),
                reached + 1), missed - 1);

        const int64_t n_at_least = count_if(x, n, [&](vec_f v) { return v >= float_of(middle); });
        if (n_at_least < k) {
            missed   = middle;
            n_missed = (float) max_of(n_at_least, 1);
        } else {
            reached   = middle;
            n_reached = n_at_least;
        }
    }

    return float_of(reached);
}

float find(const float * x, int64_t n, int64_t k) {
    const vec_f threshold = broadcast(find_threshold(x, n, k, 0));

    vec_f low = broadcast(__builtin_inff());
    for (int64_t i = 0; i < n; i += VL) {
        const vec_f v = load(x + i);
        low = v >= threshold ? min(v, low) : low;
    }
    return fold(low, min)[0];
}

// Appends the scores that reach the bound, and their numbers. Returns how many; up to VL - 1 more are written.
int64_t append_at_least(const float * scores, int64_t n, float bound, float * values, int32_t * rows) {
    vec_i lane;
    for (int v = 0; v < VL; ++v) {
        lane[v] = v;
    }

    int64_t n_found = 0;
    for (int64_t i = 0; i < n; i += VL) {
        const vec_f    x     = load(scores + i);
        const unsigned lanes = lanes_at_least(x, bound);

        store(values + n_found, compress(x, lanes));
        store((float *) rows + n_found, compress((vec_f) (lane + (int32_t) i), lanes));
        n_found += __builtin_popcount(lanes);
    }
    return n_found;
}

int64_t select(const float * scores, int64_t n, int64_t n_top, float * values, int32_t * rows, int32_t * top) {
    const float bound = find_threshold(scores, n, n_top, n_top/4);

    const int64_t n_found = append_at_least(scores, n, bound, values, rows);
    if (n_found <= n_top) {
        __builtin_memcpy(top, rows, n_found*sizeof(int32_t));
        return n_found;
    }

    store(values + n_found, broadcast(__builtin_nanf("")));
    const int64_t n_values = (n_found + VL - 1)/VL*VL;

    const float threshold = find_threshold(values, n_values, n_top, 0);
    int64_t     n_equal   = n_top - count_if(values, n_values, [&](vec_f v) { return v > threshold; });

    int64_t n_chosen = 0;
    for (int64_t i = 0; i < n_values; i += VL) {
        const vec_f x = load(values + i);

        unsigned lanes = lanes_at_least(x, threshold);
        for (unsigned equal = lanes & lanes_at_least(-x, -threshold); equal; equal &= equal - 1) {
            lanes ^= --n_equal < 0 ? equal & -equal : 0;
        }
        store((float *) rows + n_chosen, compress(load((const float *) rows + i), lanes));
        n_chosen += __builtin_popcount(lanes);
    }
    __builtin_memcpy(top, rows, n_top*sizeof(int32_t));
    return n_top;
}

} // namespace

extern const h2o_index_kernel KERNEL = { VL, pack, score, find, select };
