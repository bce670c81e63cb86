#include "ggml/simd/half.h"
#include "ggml/keys/kernels/kernel.h"

namespace {

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

const h2o_keys_kernel kernel = { hadamard, widen };

} // namespace

const h2o_keys_kernel * const KERNEL = &kernel;
