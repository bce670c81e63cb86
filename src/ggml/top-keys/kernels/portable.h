#include "ggml/simd/half.h"
#include "ggml/top-keys/kernels/kernel.h"

namespace {

typedef int16_t vec_s __attribute__((vector_size(VL*4)));

// Even numbers are added up in one half of 32 bits, odd ones likewise: 16*15*127 fits into 16 bits.
inline vec_i add_products(vec_i sum, vec_i keys, vec_i q) {
    const vec_s k = (vec_s) keys;
    const vec_s x = (vec_s) q;
    return (vec_i) ((vec_s) sum + (k & 15)*((x << 8) >> 8) + (k >> 8)*(x >> 8));
}

inline vec_i sums_of(vec_i a, vec_i b) {
    const vec_i pairs = (vec_i) ((vec_s) a + (vec_s) b);
    return ((vec_i) ((vec_u) pairs << 16) >> 16) + (pairs >> 16);
}

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
