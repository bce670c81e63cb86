#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a LoRA adapter adds to a product: sum + scale*B*y, in the place of sum, [n_out, n_tokens]; B is [rank, n_out] and y [rank, n_tokens].
// NULL if upstream's product, scaling and sum are to be used: on a device, of experts, with few tokens or a high rank.
GGML_API struct ggml_tensor * ggml_h2o_add_low_rank(
    struct ggml_context * ctx, struct ggml_tensor * sum, struct ggml_tensor * b, struct ggml_tensor * y, float scale);

#ifdef __cplusplus
}
#endif
