#if defined(__AVX512F__) && defined(__AVX512VNNI__)

#define KERNEL h2o_product_avx512
#define VL 16
#define MIN_COLUMNS 3

#include "ggml/product/kernels/vnni.h"
#include "ggml/product/kernels/simd.h"

#else

#include "ggml/product/kernels/kernel.h"

const h2o_product_kernel * const h2o_product_avx512 = nullptr;

#endif
