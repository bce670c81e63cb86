#pragma once

#include "ggml/top-keys/kernels/kernel.h"

#include "ggml.h"

GGML_API const h2o_index_kernel & h2o_index_kernel_in_use();
