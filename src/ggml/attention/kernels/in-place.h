// Few rows attend to keys in the cache, by blocks of rows and vectors of VL floats in registers. How many fit there
// follows from VL.

#include "ggml/attention/kernels/kernel.h"
#include "ggml/attention/kernels/softmax.h"
#include "ggml/simd/half.h"

namespace {

constexpr int IN_PLACE_ROWS = VL == 16 ? 6 : 3; // rows at once
constexpr int IN_PLACE_KEYS = 4;                // dot products of each at once
constexpr int MAX_CONVERTED = 256;              // numbers of a key that is converted once for all rows

// Rows are prefetched in groups, into the L2 or the L1 cache. How early was measured on an AMD EPYC with AVX-512 and on
// one without.
constexpr int PREFETCH_GROUP = 8;
constexpr int PREFETCH_AHEAD = VL == 16 ? 64 : 32; // keys
constexpr int PREFETCH_CACHE = VL == 16 ? 2 : 3;
constexpr int CACHE_LINE     = 64;                  // bytes

static_assert(H2O_ATTN_LANES % VL == 0, "");

typedef int8_t   vec_b_mem __attribute__((vector_size(VL), aligned(1), may_alias));

// Each type: VL numbers of a row from the i-th on. scale: of 16 numbers from a multiple of 16 on
struct row_f32 {
    // by how many weights and vectors of V are multiplied at once
    static constexpr int V_ROWS = IN_PLACE_ROWS;
    static constexpr int vectors(int) { return 4; }

    static float scale(const char *, int64_t) { return 1.0f; }
    static vec_f load(const char * row, int64_t i, float) { return ::load((const float *) row + i); }
};

struct row_bf16 : row_f32 {
    static vec_f load(const char * row, int64_t i, float) {
        return (vec_f) (__builtin_convertvector(*(const vec_h_mem *) (row + 2*i), vec_u) << 16);
    }
};

struct row_f16 : row_f32 {
    static vec_f load(const char * row, int64_t i, float) { return load_half(row + 2*i); }
};

// blocks of 32 numbers: their scale, then 8 bits of each
struct row_q8_0 {
    static constexpr int V_ROWS = 7; // conversion takes time: for more rows at once
    static constexpr int vectors(int n_rows) { return VL == 16 || n_rows <= IN_PLACE_ROWS ? 4 : 2; }

    static float scale(const char * row, int64_t i) { return half_at(row + i/32*34); }

    static vec_f load(const char * row, int64_t i, float scale) {
        const void * bytes = row + i/32*34 + 2 + i%32;
#if !HAS_F16C
        const vec_i x = __builtin_convertvector(*(const vec_b_mem *) bytes, vec_i);
#elif VL == 16
        const vec_i x = (vec_i) _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) bytes));
#else
        const vec_i x = (vec_i) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) bytes));
#endif
        return __builtin_convertvector(x, vec_f)*scale;
    }
};

// f(the type)
template <typename F>
inline void with_type(ggml_type type, const F & f) {
    switch (type) {
        case GGML_TYPE_F32:  f(row_f32 ()); break;
        case GGML_TYPE_F16:  f(row_f16 ()); break;
        case GGML_TYPE_BF16: f(row_bf16()); break;
        default:             f(row_q8_0()); break;
    }
}

// f(constant<number of rows>, first row) for blocks of at most MAX rows whose sizes differ by one at most
template <int MAX = IN_PLACE_ROWS, typename F>
inline void for_row_blocks(int n_rows, const F & f) {
    const int n_blocks = (n_rows + MAX - 1)/MAX;
    for (int b = 0; b < n_blocks; ++b) {
        const int r = b*n_rows/n_blocks;
        with_constant<MAX>((b + 1)*n_rows/n_blocks - r, [&](auto c) { f(c, r); });
    }
}

// lane j: the sum of the lanes j%4, j%4 + 4, ... of x[j/4], x[0] alone if there are 4 lanes
inline vec_f add_quads(const vec_f * x) {
    if constexpr (VL == 4) {
        return x[0];
    } else if constexpr (VL == 8) {
        return add_pairs<4>(x[0], x[1]);
    } else {
        return add_pairs<8>(add_pairs<4>(x[0], x[1]), add_pairs<4>(x[2], x[3]));
    }
}

inline const char * row_of(const h2o_attn_source & x, int64_t key) {
    return x.data + x.rows[key]*x.stride;
}

// Both lines of a pair at once: one line of all rows, then the other, took twice as long on an AMD EPYC.
[[gnu::noinline]] inline void prefetch_rows(const h2o_attn_source & x, int64_t key, int64_t n, int64_t start,
        int64_t end) {
    __asm__ volatile (""); // GCC leaves out a call that has no effect
    for (int64_t i = start; i < end; i += 2*CACHE_LINE) {
        for (int c = 0; c < PREFETCH_GROUP; ++c) {
            const char * row = row_of(x, min_of(key + c, n - 1));
            __builtin_prefetch(row + i, 0, PREFETCH_CACHE);
            __builtin_prefetch(row + min_of(i + CACHE_LINE, end - 1), 0, PREFETCH_CACHE);
        }
    }
}

// Rows in the order in which they are read: the bytes [start, end) of n rows, then n_next of others.
struct reading {
    const h2o_attn_source & x;
    int64_t n;
    int64_t start;
    int64_t end;

    const h2o_attn_source & next;
    int64_t n_next;

    // PREFETCH_GROUP rows that are read PREFETCH_AHEAD rows after the key-th
    void prefetch(int64_t key) const {
        key += PREFETCH_AHEAD;
        if (key < n) {
            prefetch_rows(x, key, n, start, end);
        } else if (key - n < n_next) {
            prefetch_rows(next, key - n, n_next, 0, next.size);
        }
    }
};

void read_rows(const h2o_attn_source & x, int64_t key, int64_t n, float * dst) {
    with_type(x.type, [&](auto type) {
        for (const int64_t end = key + n; key < end; ++key, dst += x.d) {
            const char * row = x.data + (x.rows ? x.rows[key] : key)*x.stride;
            for (int64_t i = 0; i < x.d; i += H2O_ATTN_LANES) {
                const float scale = decltype(type)::scale(row, i);
                for (int64_t j = i; j < i + H2O_ATTN_LANES; j += VL) {
                    store(dst + j, decltype(type)::load(row, j, scale));
                }
            }
        }
    });
}

// Logits of n keys, at most VL, as those from the key-th on; of the last key again up to VL.
template <typename T, int M>
void dot_rows(const h2o_attn_tile & t, const h2o_attn_source & from, int64_t n, int first_row, int64_t key) {
    vec_f quads[M][VL/4];

    for (int j = 0; j < VL/4; ++j) {
        const char * k[IN_PLACE_KEYS];
        for (int c = 0; c < IN_PLACE_KEYS; ++c) {
            k[c] = row_of(from, min_of(4*j + c, n - 1));
        }

        vec_f sum[M][IN_PLACE_KEYS] = {};
        for (int64_t i = 0; i < t.d_k; i += VL) {
            vec_f q[M];
            for (int r = 0; r < M; ++r) {
                q[r] = load(t.q + (first_row + r)*t.d_k + i);
            }
            for (int c = 0; c < IN_PLACE_KEYS; ++c) { // one of them in a register at a time
                const vec_f x = T::load(k[c], i, T::scale(k[c], i));
                for (int r = 0; r < M; ++r) {
                    sum[r][c] += x*q[r];
                }
            }
        }
        for (int r = 0; r < M; ++r) {
            quads[r][j] = add_pairs<2>(add_pairs<1>(sum[r][0], sum[r][1]), add_pairs<1>(sum[r][2], sum[r][3]));
        }
    }

    for (int r = 0; r < M; ++r) {
        store(t.logits + (first_row + r)*t.ld + key, add_quads(quads[r]));
    }
}

// N vectors of the rows' output, from the i-th number on
template <typename T, int M, int N>
void add_values(const h2o_attn_tile & t, int first_row, int64_t i) {
    const bool is_first = first_row == 0; // the rows after these find all in the cache
    const bool is_last  = first_row + M == t.n_rows && i + N*VL == t.d_v;

    const int64_t start_byte = t.v.size*i/t.d_v;
    const int64_t end_byte   = is_first ? t.v.size*(i + N*VL)/t.d_v : start_byte;

    const reading order = { t.v, t.n_keys, start_byte, end_byte, t.next_k, is_last ? t.n_next : 0 };

    vec_f sum[M][N] = {};

    const float * weights = t.logits + first_row*t.ld;
    for (int64_t start = 0; start < t.n_keys; start += PREFETCH_GROUP) {
        order.prefetch(start);

        for (int64_t key = start; key < min_of(start + PREFETCH_GROUP, t.n_keys); ++key) {
            const char * v = row_of(t.v, key);

            float scale = 0.0f;
            for (int j = 0; j < N; ++j) {
                scale = j*VL % 32 == 0 ? T::scale(v, i + j*VL) : scale;

                const vec_f x = T::load(v, i + j*VL, scale);
                for (int r = 0; r < M; ++r) {
                    sum[r][j] += x*weights[r*t.ld + key];
                }
            }
        }
    }

    for (int r = 0; r < M; ++r) {
        const float l = t.l[first_row + r];
        const float f = l == 0.0f ? 0.0f : 1.0f/l;
        for (int j = 0; j < N; ++j) {
            store(t.o + (first_row + r)*h2o_attn_pad(t.d_v) + i + j*VL, sum[r][j]*f);
        }
    }
}

// all logits
void multiply_keys(const h2o_attn_tile & t) {
    static const int32_t IOTA[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };

    const reading order = { t.k, t.n_keys, 0, t.k.size, t.v, t.n_keys };

    const bool  converts = t.k.type == GGML_TYPE_Q8_0 && t.n_rows > IN_PLACE_ROWS && t.d_k <= MAX_CONVERTED;
    float       converted[VL*MAX_CONVERTED];
    const auto  size = t.d_k*(int64_t) sizeof(float);

    for (int64_t key = 0; key < t.n_keys; key += VL) {
        for (int64_t j = key; j < key + VL; j += PREFETCH_GROUP) {
            order.prefetch(j);
        }
        const int64_t   n = min_of(VL, t.n_keys - key);
        h2o_attn_source k = t.k;
        k.rows += key;
        if (converts) {
            read_rows(k, 0, n, converted);
            k = { (const char *) converted, size, size, IOTA, GGML_TYPE_F32, t.d_k };
        }
        with_type(k.type, [&](auto type) {
            for_row_blocks(t.n_rows, [&](auto c, int r) {
                dot_rows<decltype(type), decltype(c)::value>(t, k, n, r, key);
            });
        });
    }
}

// the rows' output
void add_up_values(const h2o_attn_tile & t) {
    with_type(t.v.type, [&](auto type) {
        for_row_blocks<decltype(type)::V_ROWS>(t.n_rows, [&](auto c, int r) {
            constexpr int M  = decltype(c)::value;
            constexpr int NV = decltype(type)::vectors(M);

            int64_t i = 0;
            for (; i + NV*VL <= t.d_v; i += NV*VL) {
                add_values<decltype(type), M, NV>(t, r, i);
            }
            for (; i < t.d_v; i += VL) {
                add_values<decltype(type), M, 1>(t, r, i);
            }
        });
    });
}

void in_place(const h2o_attn_tile & t) {
    const int64_t n = (t.n_keys + VL - 1)/VL*VL;

    multiply_keys(t);

    for_row_blocks(t.n_rows, [&](auto c, int r) {
        for (int i = r; i < r + decltype(c)::value; ++i) {
            t.m[i] = -__builtin_inff();
        }
        softmax<plain_weights, decltype(c)::value>(t, r, n, t.l + r);
    });

    add_up_values(t);
}

} // namespace
