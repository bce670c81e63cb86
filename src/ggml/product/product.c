#include "ggml/product/product.h"

#include "ggml-impl.h"

// not a value of upstream's enum ggml_op_hint
#define HINT 0x4832

static bool is_product(const struct ggml_tensor * t) {
    return t->op == GGML_OP_MUL_MAT || t->op == GGML_OP_MUL_MAT_ID;
}

void ggml_h2o_product_hint(struct ggml_tensor * product) {
    GGML_ASSERT(is_product(product) && "only these have kernels");
    if (ggml_get_op_params_i32(product, 1) == GGML_HINT_NONE) {
        ggml_set_op_params_i32(product, 1, HINT);
    }
}

bool ggml_h2o_product_has_hint(const struct ggml_tensor * product) {
    return is_product(product) && ggml_get_op_params_i32(product, 1) == HINT;
}
