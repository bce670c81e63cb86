#if defined(__AVX512VNNI__) && defined(__AMX_INT8__)

#define KERNELS h2o_products_amx
#define VL 16
#define TILES

#include "ggml/product/kernels/vnni.h"
#include "ggml/product/kernels/table.h"

#else

#include "ggml/product/kernels/kernel.h"

const h2o_product_kernels * const h2o_products_amx = nullptr;

#endif
