#if defined(__AVX2__) && defined(__AVXVNNI__)

#define KERNEL h2o_product_avxvnni
#define VL 8
#define MIN_COLUMNS 3

#include "h2o-product-vnni.h"
#include "h2o-product-simd.h"

#else

#include "h2o-product-kernel.h"

const h2o_product_kernel * const h2o_product_avxvnni = nullptr;

#endif
