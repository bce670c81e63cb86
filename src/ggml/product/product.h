#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// Lets the CPU multiply by H2O's own kernels, if it has one for the weights' type. The product was made by ggml_mul_mat
// or ggml_mul_mat_id. Results differ a little from upstream's: columns are rounded to Q8_0, where upstream rounds some
// to Q8_K; with AMX many columns are rounded to BF16.
GGML_API void ggml_h2o_product_hint(struct ggml_tensor * product);

GGML_API bool ggml_h2o_product_has_hint(const struct ggml_tensor * product);

// Whether weights for H2O's kernels should be loaded as stored in the file: repacked weights can only be multiplied by
// upstream's kernels. False on Arm, where H2O has none.
GGML_API bool ggml_h2o_product_wants_plain_weights(void);

#ifdef __cplusplus
}
#endif
