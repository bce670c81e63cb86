#pragma once

#include "ggml.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Normalised Walsh-Hadamard transform of every block of size numbers, a power of 2 and at least 16. It is its own inverse.
GGML_API void ggml_h2o_hadamard(float * x, int64_t n, int64_t size);

// y[i] = x[i], for n numbers
GGML_API void ggml_h2o_widen_f16(const ggml_fp16_t * x, int64_t n, float * y);

#ifdef __cplusplus
}
#endif
