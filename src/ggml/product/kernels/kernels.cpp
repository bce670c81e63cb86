#include "ggml/product/kernels/kernels.h"

#include "ggml/product/product.h"
#include "ggml/simd/isa.h"
#include "h2o-kernels.h"

#define DECLARE(isa, kernels) h2o_product_kernels kernels;
H2O_PRODUCT_KERNELS(DECLARE)

bool ggml_h2o_product_wants_plain_weights() {
    return h2o_uses_isa(h2o_isa::AVX2);
}

const h2o_product_kernel * h2o_product_kernel_in_use([[maybe_unused]] ggml_type type) { // Arm has no kernels
    const h2o_product_kernel * kernel = nullptr;
#define TRY(isa, kernels) kernel = kernel || !h2o_uses_isa(h2o_isa::isa) ? kernel : kernels(type);
    H2O_PRODUCT_KERNELS(TRY)
    return kernel;
}
