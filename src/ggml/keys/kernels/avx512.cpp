#if defined(__AVX512F__)

#define KERNEL h2o_keys_avx512
#define VL 16

#include "ggml/keys/kernels/simd.h"

#else

#include "ggml/keys/kernels/kernel.h"

const h2o_keys_kernel * const h2o_keys_avx512 = nullptr;

#endif
