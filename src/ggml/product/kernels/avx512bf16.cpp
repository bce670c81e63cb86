#if defined(__AVX512F__) && defined(__AVX512BF16__)

#define VL 16

#include "ggml/product/kernels/bf16-pairs.h"
#include "ggml/product/kernels/float-kernel.h"

namespace {

const h2o_product_kernel kernel = float_kernel_of<bf16_pairs>(true);

} // namespace

const h2o_product_kernel * const h2o_product_avx512bf16 = &kernel;

#else

#include "ggml/product/kernels/kernel.h"

const h2o_product_kernel * const h2o_product_avx512bf16 = nullptr;

#endif
