#include "ggml/product/cpu/hint.h"

#include "ggml/product/product.h"

const h2o_product_kernel * h2o_product_kernel_for(const ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * x       = dst->src[1];

    const bool fits = ggml_h2o_product_has_hint(dst) && x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && x->ne[3] == 1;

    return fits ? h2o_product_kernel_in_use(weights->type) : nullptr;
}
