#pragma once

#include "h2o-attn-kernel.h"

#include "ggml.h"

// Kernels that this CPU has, the best one first, NULL after the last.
GGML_API const h2o_attn_kernel * const * h2o_attn_kernels();

// The one in use; with more_keys, the first from there on whose tiles may have further keys.
GGML_API const h2o_attn_kernel & h2o_attn_kernel_in_use(bool more_keys);
