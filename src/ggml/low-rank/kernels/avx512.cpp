#if defined(__AVX512F__)

#define KERNEL h2o_low_rank_avx512
#define VL 16

#include "ggml/low-rank/kernels/add.h"

#else

#include "ggml/low-rank/kernels/kernel.h"

const h2o_low_rank_kernel * const h2o_low_rank_avx512 = nullptr;

#endif
