#if defined(__AVX512F__) && defined(__AVX512VNNI__)

#define KERNEL h2o_product_avx512
#define VL 16
#define MIN_COLUMNS 3

#include "h2o-product-vnni.h"
#include "h2o-product-simd.h"

#else

#include "h2o-product-kernel.h"

const h2o_product_kernel * const h2o_product_avx512 = nullptr;

#endif
