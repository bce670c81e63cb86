#pragma once

#include "ggml/product/kernels/kernels.h"

// NULL if upstream is to multiply.
const h2o_product_kernel * h2o_product_kernel_for(const ggml_tensor * dst);
