#include "ggml/product/kernels/isa.h"

#include "ggml/attention/kernels/isa.h"

const h2o_product_kernel * h2o_product_kernel_in_use() {
#if defined(__x86_64__)
    const h2o_isa isa = h2o_isa_in_use();
    if (isa == h2o_isa::AVX512_VNNI && h2o_product_avx512) {
        return h2o_product_avx512;
    }
    if (isa == h2o_isa::AVX_VNNI && h2o_product_avxvnni) {
        return h2o_product_avxvnni;
    }
    if (isa >= h2o_isa::AVX2) {
        return h2o_product_avx2;
    }
#endif
    return nullptr;
}
