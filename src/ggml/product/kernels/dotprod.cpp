#if defined(__ARM_FEATURE_DOTPROD)

#define KERNELS h2o_products_dotprod
#define VL 4

#include "ggml/product/kernels/dotprod.h"
#include "ggml/product/kernels/table.h"

#else

#include "ggml/product/kernels/kernel.h"

const h2o_product_kernels * const h2o_products_dotprod = nullptr;

#endif
