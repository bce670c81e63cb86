#if defined(__AVX2__) && defined(__FMA__)

#define KERNEL h2o_keys_avx2
#define VL 8

#include "ggml/keys/kernels/simd.h"

#else

#include "ggml/keys/kernels/kernel.h"

const h2o_keys_kernel * const h2o_keys_avx2 = nullptr;

#endif
