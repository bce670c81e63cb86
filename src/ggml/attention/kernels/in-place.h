// Few rows attend to keys in the cache, by blocks of rows and vectors of VL floats in registers. How many fit there
// follows from VL.

#include "ggml/attention/kernels/bytes.h"
#include "ggml/attention/kernels/softmax.h"

namespace {

constexpr int ROWS        = VL == 16 ? 6 : 3; // at once
constexpr int ROW_KEYS    = 4;                // dot products of each at once
constexpr int ROW_VECTORS = 4;                // of V, by which weights are multiplied at once

static_assert(H2O_ATTN_LANES % VL == 0, "");

// Each type: VL numbers of a row from the i-th on.
struct row_f32 {
    static vec_f load(const char * row, int64_t i) { return ::load((const float *) row + i); }
};

struct row_f16 {
    static vec_f load(const char * row, int64_t i) { return load_half(row + 2*i); }
};

// f(the type)
template <typename F>
inline void with_type(ggml_type type, const F & f) {
    type == GGML_TYPE_F16 ? f(row_f16()) : f(row_f32());
}

// f(constant<number of rows>, first row) for blocks of at most MAX rows whose sizes differ by one at most
template <int MAX, typename F>
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

void read_rows(const h2o_attn_source & x, int64_t key, int64_t n, float * dst) {
    for (const int64_t end = key + n; key < end; ++key, dst += x.d) {
        const char * row = row_of(x, key);
        if (x.type == GGML_TYPE_Q8_0) {
            for (int64_t i = 0; i < x.d; i += BYTES, row += 2 + BYTES) {
                const float scale = half_at(row);
                for (int j = 0; j < BYTES; ++j) {
                    dst[i + j] = scale*(int8_t) row[2 + j];
                }
            }
            continue;
        }
        with_type(x.type, [&](auto type) {
            for (int64_t i = 0; i < x.d; i += VL) {
                store(dst + i, decltype(type)::load(row, i));
            }
        });
    }
}

// Logits of VL keys from the key-th on; after the last one of it again
template <typename T, int M>
void dot_rows(const h2o_attn_tile & t, int first_row, int64_t key) {
    vec_f quads[M][VL/4];

    for (int j = 0; j < VL/4; ++j) {
        const char * k[ROW_KEYS];
        for (int c = 0; c < ROW_KEYS; ++c) {
            k[c] = row_of(t.k, min_of(key + 4*j + c, t.n_keys - 1));
        }

        vec_f sum[M][ROW_KEYS] = {};
        for (int64_t i = 0; i < t.d_k; i += VL) {
            vec_f q[M];
            for (int r = 0; r < M; ++r) {
                q[r] = load(t.q + (first_row + r)*t.d_k + i);
            }
            for (int c = 0; c < ROW_KEYS; ++c) { // one of them in a register at a time
                const vec_f x = T::load(k[c], i);
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

// N vectors are added to the rows' output, from the i-th number on
template <typename T, int M, int N>
void add_values(const h2o_attn_tile & t, int first_row, int64_t i) {
    vec_f sum[M][N] = {};

    const float * weights = t.logits + first_row*t.ld;
    for (int64_t start = 0; start < t.n_keys; start += PREFETCH_GROUP) {
        if (first_row == 0 && i == 0) {
            prefetch_rows(t.next_v, start, start + PREFETCH_GROUP, t.n_next);
        }
        for (int64_t key = start; key < min_of(start + PREFETCH_GROUP, t.n_keys); ++key) {
            const char * v = row_of(t.v, key);

            for (int j = 0; j < N; ++j) {
                const vec_f x = T::load(v, i + j*VL);
                for (int r = 0; r < M; ++r) {
                    sum[r][j] += x*weights[r*t.ld + key];
                }
            }
        }
    }
    for (int r = 0; r < M; ++r) {
        for (int j = 0; j < N; ++j) {
            float * o = t.o + (first_row + r)*h2o_attn_pad(t.d_v) + i + j*VL;
            store(o, load(o) + sum[r][j]);
        }
    }
}

// o = f*o
inline void scale_row(float * o, int64_t d_v, float f) {
    for (int64_t i = 0; i < d_v; i += VL) {
        store(o + i, load(o + i)*f);
    }
}

// H2O_ATTN_PAD keys and values from the key-th of n on
void pack_bytes(const h2o_attn_source & k, const h2o_attn_source & v, int64_t key, int64_t n, float * packed_k,
        float * packed_v) {
    for (int64_t j = key; j < key + H2O_ATTN_PAD; j += VL) {
        pack_byte_keys(k, j, n, packed_k + j/VL*byte_panel(k.d));
    }
    for (int64_t j = key; j < key + H2O_ATTN_PAD; j += BYTE_KEYS) {
        pack_byte_values(v, j, n, packed_v);
    }
}

// logits = q*k
void multiply_rows_k(const h2o_attn_tile & t) {
    with_type(t.k.type, [&](auto type) {
        for (int64_t key = 0; key < t.n_keys; key += VL) {
            prefetch_rows(t.next_k, key, key + VL, t.n_next);
            for_row_blocks<ROWS>(t.n_rows, [&](auto c, int r) {
                dot_rows<decltype(type), decltype(c)::value>(t, r, key);
            });
        }
    });
}

// o += weights*v
void multiply_rows_v(const h2o_attn_tile & t) {
    with_type(t.v.type, [&](auto type) {
        for_row_blocks<ROWS>(t.n_rows, [&](auto c, int r) {
            constexpr int M = decltype(c)::value;

            int64_t i = 0;
            for (; i + ROW_VECTORS*VL <= t.d_v; i += ROW_VECTORS*VL) {
                add_values<decltype(type), M, ROW_VECTORS>(t, r, i);
            }
            for (; i < t.d_v; i += VL) {
                add_values<decltype(type), M, 1>(t, r, i);
            }
        });
    });
}

} // namespace
