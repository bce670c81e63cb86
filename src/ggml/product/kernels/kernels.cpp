#include "ggml/product/kernels/kernels.h"

#include "ggml/simd/isa.h"

const h2o_product_kernel * h2o_product_kernel_in_use() {
    return h2o_kernel_in_use<h2o_product_kernel>({
        { h2o_isa::AVX512_VNNI, h2o_product_avx512 },
        { h2o_isa::AVX_VNNI,    h2o_product_avxvnni },
        { h2o_isa::AVX2,        h2o_product_avx2 },
    });
}
