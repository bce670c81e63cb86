#pragma once

#include "ggml/product/kernels/kernel.h"

#include "ggml.h"

// The best one of this CPU, or that for the same CPUs as the kernel of ggml_h2o_attn in use. NULL if there is none.
GGML_API const h2o_product_kernel * h2o_product_kernel_in_use();
