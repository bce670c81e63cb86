#include "ggml/product/cpu/hint.h"

#include "ggml/product/product.h"

const h2o_product_kernel * h2o_product_kernel_for(const ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * x       = dst->src[1];

    const bool fits = ggml_h2o_product_has_hint(dst) && x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && x->ne[3] == 1 &&
        x->ne[0]%H2O_PRODUCT_BLOCK == 0;

    const h2o_product_kernel * kernel = fits ? h2o_product_kernel_in_use(weights->type) : nullptr;

    const int64_t n_columns = dst->op == GGML_OP_MUL_MAT ? x->ne[1] : dst->ne[1]*dst->ne[2]/weights->ne[2];

    return kernel && n_columns >= kernel->min_columns ? kernel : nullptr;
}
