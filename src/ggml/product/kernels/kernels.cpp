#include "ggml/product/kernels/kernels.h"

#include "ggml/product/product.h"
#include "ggml/simd/isa.h"
#include "h2o-kernels.h"

#define DECLARE(isa, kernels) h2o_product_kernels kernels;
H2O_PRODUCT_KERNELS(DECLARE)

bool ggml_h2o_product_wants_plain_weights() {
    return h2o_uses_isa(h2o_isa::AVX2);
}

const h2o_product_kernel * h2o_product_kernel_in_use([[maybe_unused]] ggml_type type, // Arm has no kernels
        [[maybe_unused]] int64_t n_columns) {
#define TRY(isa, kernels) \
    if (const auto * kernel = h2o_uses_isa(h2o_isa::isa) ? kernels(type) : nullptr; \
            kernel && n_columns >= kernel->min_columns) { \
        return kernel; \
    }
    H2O_PRODUCT_KERNELS(TRY)
    return nullptr;
}
