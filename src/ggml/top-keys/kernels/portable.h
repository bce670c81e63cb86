#include "ggml/simd/half.h"
#include "ggml/top-keys/kernels/kernel.h"

namespace {

typedef int16_t  vec_s __attribute__((vector_size(VL*4)));
typedef uint16_t vec_h __attribute__((vector_size(VL*4)));
typedef uint16_t vec_bytes_mem __attribute__((vector_size(VL*4), aligned(4), may_alias));

// Two numbers of every key in 16 bits each, with the same two of a query. All sums of a block's products fit into 16
// bits: 16*15*127.
inline vec_s product(vec_h keys, int8_t a, int8_t b) {
    const int32_t pair = (uint16_t) (int16_t) a | (uint32_t) (uint16_t) (int16_t) b << 16;
    return (vec_s) (keys & 15)*(vec_s) (pair + vec_i {});
}

struct key_block {
    vec_h bytes[4];

    explicit key_block(const char * src) {
        for (int j = 0; j < 4; ++j) {
            bytes[j] = *(const vec_bytes_mem *) (src + j*VL*4);
        }
    }

    vec_i dot(const h2o_index_query & q) const {
        vec_s sum = {};
        for (int j = 0; j < 4; ++j) {
            const int8_t * low  = q.x + 4*j;
            const int8_t * high = q.x + 4*j + 16;

            sum += product(bytes[j],       low [0], low [2]);
            sum += product(bytes[j] >>  8, low [1], low [3]);
            sum += product(bytes[j] >>  4, high[0], high[2]);
            sum += product(bytes[j] >> 12, high[1], high[3]);
        }
        const vec_i pairs = (vec_i) sum;
        return ((vec_i) ((vec_u) pairs << 16) >> 16) + (pairs >> 16) + q.offset;
    }
};

inline vec_f load_rows(const char * const * src, int64_t offset) {
    vec_f x;
    __builtin_memcpy(&x, src[0] + offset, sizeof(x));
    return x;
}

inline unsigned lanes_at_least(vec_f x, float t) {
    const vec_i is_true = x >= t;

    unsigned lanes = 0;
    for (int j = 0; j < VL; ++j) {
        lanes |= (is_true[j] & 1u) << j;
    }
    return lanes;
}

inline vec_f compress(vec_f x, unsigned lanes) {
    vec_f y = x;
    for (int j = 0, n = 0; j < VL; ++j) {
        y[n] = x[j];
        n += lanes >> j & 1;
    }
    return y;
}

} // namespace

#include "ggml/top-keys/kernels/simd.h"
