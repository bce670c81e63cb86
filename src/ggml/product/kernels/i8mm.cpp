#if defined(__ARM_FEATURE_MATMUL_INT8)

#define KERNELS h2o_products_i8mm
#define VL 4

#include "ggml/product/kernels/i8mm.h"
#include "ggml/product/kernels/table.h"

#else

#include "ggml/product/kernels/kernel.h"

const h2o_product_kernels * const h2o_products_i8mm = nullptr;

#endif
