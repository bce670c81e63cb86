#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#define KERNELS h2o_products_avx2
#define VL 8

#include "ggml/product/kernels/avx2.h"
#include "ggml/product/kernels/table.h"

#else

#include "ggml/product/kernels/kernel.h"

const h2o_product_kernels * const h2o_products_avx2 = nullptr;

#endif
