#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// Lets the CPU multiply by H2O's own kernels, where it has some for the weights' type: a product made by ggml_mul_mat or
// ggml_mul_mat_id. Its results differ a little: columns are rounded to Q8_0, where upstream rounds some to Q8_K; for weights in
// F16 and BF16 they are not rounded, or to BF16.
GGML_API void ggml_h2o_product_hint(struct ggml_tensor * product);

GGML_API bool ggml_h2o_product_has_hint(const struct ggml_tensor * product);

// Whether weights that are to be multiplied by H2O's kernels should lie in memory as in the file: what upstream has repacked only its
// own kernels can multiply. Not on Arm, where nobody has compared them.
GGML_API bool ggml_h2o_product_wants_plain_weights(void);

#ifdef __cplusplus
}
#endif
