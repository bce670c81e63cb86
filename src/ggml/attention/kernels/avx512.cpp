#if defined(__AVX512F__)

#define KERNEL h2o_attn_avx512
#define VL 16
#define NV 2
#define MR 12

#include "ggml/attention/kernels/f32.h"

#else

#include "ggml/attention/kernels/kernel.h"

const h2o_attn_kernel * const h2o_attn_avx512 = nullptr;

#endif
