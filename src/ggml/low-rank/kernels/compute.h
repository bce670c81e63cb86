#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

#define H2O_LOW_RANK_MAX 128 // a tile of B is on the stack

void ggml_h2o_compute_low_rank(
    struct ggml_tensor * dst, const struct ggml_tensor * sum, const struct ggml_tensor * b,
    const struct ggml_tensor * y, int ith, int nth, void * data);

#ifdef __cplusplus
}
#endif
