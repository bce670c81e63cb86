#if defined(__AVX2__) && defined(__AVXVNNI__)

#define KERNEL h2o_product_avxvnni
#define VL 8
#define MIN_COLUMNS 3

#include "ggml/product/kernels/vnni.h"
#include "ggml/product/kernels/simd.h"

#else

#include "ggml/product/kernels/kernel.h"

const h2o_product_kernel * const h2o_product_avxvnni = nullptr;

#endif
