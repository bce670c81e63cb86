#if defined(__AVX2__) && defined(__AVXVNNI__)

#define KERNELS h2o_products_avxvnni
#define VL 8

#include "ggml/product/kernels/vnni.h"
#include "ggml/product/kernels/table.h"

#else

#include "ggml/product/kernels/kernel.h"

const h2o_product_kernels * const h2o_products_avxvnni = nullptr;

#endif
