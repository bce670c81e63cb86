#if defined(__AVX2__) && defined(__FMA__)

#define KERNEL h2o_low_rank_avx2
#define VL 8

#include "ggml/low-rank/kernels/add.h"

#else

#include "ggml/low-rank/kernels/kernel.h"

const h2o_low_rank_kernel * const h2o_low_rank_avx2 = nullptr;

#endif
