#if defined(__AVX512F__) && defined(__AVX512VNNI__)

#define KERNELS h2o_products_avx512
#define VL 16

#include "ggml/product/kernels/vnni.h"
#include "ggml/product/kernels/table.h"

#else

#include "ggml/product/kernels/kernel.h"

const h2o_product_kernels * const h2o_products_avx512 = nullptr;

#endif
