#pragma once

#include "ggml-cpu.h"

#include "ggml/product/kernels/kernel.h"

// bytes of n blocks of a column that is rounded, or none
inline int64_t h2o_rounded_size(const h2o_product_kernel & kernel, int64_t n_blocks) {
    return kernel.column_block == H2O_PRODUCT_Q8_0_BYTES ? n_blocks*kernel.column_block : 0;
}

// n blocks of a column, as the kernel takes them: rounded, at dst, or as they are.
inline const char * h2o_round_column(const h2o_product_kernel & kernel, const float * x, int64_t n_blocks, char * dst) {
    if (kernel.column_block != H2O_PRODUCT_Q8_0_BYTES) {
        return (const char *) x;
    }
    ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float(x, dst, n_blocks*H2O_PRODUCT_BLOCK);
    return dst;
}
