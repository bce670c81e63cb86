#pragma once

#include "ggml/product/kernels/kernel.h"

// The fastest kernel for weights of this type by n columns (of an expert on average). NULL if upstream's is faster.
GGML_API const h2o_product_kernel * h2o_product_kernel_in_use(ggml_type type, int64_t n_columns);
