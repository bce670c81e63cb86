#pragma once

#include "ggml/top-keys/kernels/kernel.h"

#include "ggml.h"

// The best one of this CPU, or that for the same CPUs as the kernel of ggml_h2o_attn in use.
GGML_API const h2o_index_kernel & h2o_index_kernel_in_use();
