#pragma once

#include "ggml/product/kernels/kernel.h"

// The kernel for weights of this type, or NULL.
GGML_API const h2o_product_kernel * h2o_product_kernel_in_use(ggml_type type);
