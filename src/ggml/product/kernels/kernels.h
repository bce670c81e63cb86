#pragma once

#include "ggml/product/kernels/kernel.h"

#include "ggml.h"

// NULL if there is none for weights of this type.
GGML_API const h2o_product_kernel * h2o_product_kernel_in_use(ggml_type type);
