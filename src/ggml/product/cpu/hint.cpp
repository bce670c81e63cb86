#include "ggml/product/cpu/hint.h"

#include "ggml/product/product.h"

// Upstream multiplies by experts column by column.
static bool is_faster(const h2o_product_kernel & kernel, const ggml_tensor * dst) {
    const int64_t MIN_COLUMNS = 4; // of an expert, on average

    if (dst->op == GGML_OP_MUL_MAT_ID) {
        return kernel.min_columns == 0 || dst->ne[1]*dst->ne[2] >= MIN_COLUMNS*dst->src[0]->ne[2];
    }
    return dst->ne[1] >= (dst->ne[1] <= kernel.max_direct ? kernel.min_columns : kernel.min_packed);
}

const h2o_product_kernel * h2o_product_kernel_for(const ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * x       = dst->src[1];

    const bool fits = ggml_h2o_product_has_hint(dst) && x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && x->ne[3] == 1 &&
        x->ne[0]%H2O_PRODUCT_BLOCK == 0;

    const h2o_product_kernel * kernel = fits ? h2o_product_kernel_in_use(weights->type) : nullptr;

    return kernel && is_faster(*kernel, dst) ? kernel : nullptr;
}
