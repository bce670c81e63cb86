#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// Lets the CPU multiply by H2O's own kernels, where it has some for the weights' type (Q8_0), and they are faster: a product made
// by ggml_mul_mat. Its results differ in their last bits.
GGML_API void ggml_h2o_product_hint(struct ggml_tensor * product);

GGML_API bool ggml_h2o_product_has_hint(const struct ggml_tensor * product);

#ifdef __cplusplus
}
#endif
