#pragma once

#include "ggml/attention/kernels/kernel.h"

#include "ggml.h"

GGML_API const h2o_attn_kernel & h2o_attn_kernel_in_use();
