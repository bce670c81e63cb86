#include "ggml/product/kernels/kernels.h"

#include "ggml/product/product.h"
#include "ggml/simd/isa.h"
#include "h2o-kernels.h"

#define DECLARE(isa, kernels) h2o_product_kernels kernels;
H2O_PRODUCT_KERNELS(DECLARE)

bool ggml_h2o_product_wants_plain_weights() {
    return h2o_uses_isa(h2o_isa::AVX2);
}

// min_packed is about upstream's matrices: it multiplies by experts column by column.
[[maybe_unused]] static bool takes(const h2o_product_kernel * kernel, int64_t n_columns, bool has_experts) {
    return kernel &&
        n_columns >= (has_experts || n_columns <= kernel->max_direct ? kernel->min_columns : kernel->min_packed);
}

const h2o_product_kernel * h2o_product_kernel_in_use([[maybe_unused]] ggml_type type, // Arm has no kernels
        [[maybe_unused]] int64_t n_columns, [[maybe_unused]] bool has_experts) {
#define TRY(isa, kernels) \
    if (h2o_uses_isa(h2o_isa::isa) && takes(kernels(type), n_columns, has_experts)) { \
        return kernels(type); \
    }
    H2O_PRODUCT_KERNELS(TRY)
    return nullptr;
}
