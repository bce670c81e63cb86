#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// Adds a LoRA adapter to a product, in place: sum + scale*B*y. sum is [n_out, n_tokens], B [rank, n_out], y [rank,
// n_tokens]. NULL if upstream's operators are to be used: on a device, with experts, with few tokens or a high rank.
GGML_API struct ggml_tensor * ggml_h2o_add_low_rank(
    struct ggml_context * ctx, struct ggml_tensor * sum, struct ggml_tensor * b, struct ggml_tensor * y, float scale);

#ifdef __cplusplus
}
#endif
