#pragma once

#include "ggml/attention/kernels/kernel.h"

#include "ggml.h"

// Kernels that this CPU has, the best one first, NULL after the last.
GGML_API const h2o_attn_kernel * const * h2o_attn_kernels();

// The one in use; with more_keys, the first from there on whose tiles may have further keys.
GGML_API const h2o_attn_kernel & h2o_attn_kernel_in_use(bool more_keys);

// What the kernels of other operators may use: as much as that one, where several CPUs have the same one by what it is called.
enum class h2o_isa { PORTABLE, AVX2, AVX_VNNI, AVX512, AVX512_VNNI };

GGML_API h2o_isa h2o_isa_in_use();
