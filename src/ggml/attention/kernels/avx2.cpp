#if defined(__AVX2__) && defined(__FMA__)

#define KERNEL h2o_attn_avx2
#define VL 8
#define NV 2
#define MR 6

#include "ggml/attention/kernels/f32.h"

#else

#include "ggml/attention/kernels/kernel.h"

const h2o_attn_kernel * const h2o_attn_avx2 = nullptr;

#endif
