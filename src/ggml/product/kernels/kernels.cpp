#include "ggml/product/kernels/kernels.h"

#include "ggml/product/product.h"
#include "ggml/simd/isa.h"

bool ggml_h2o_product_wants_plain_weights() {
    return h2o_uses_isa(h2o_isa::AVX2);
}

const h2o_product_kernel * h2o_product_kernel_in_use(ggml_type type) {
    const h2o_product_kernels * kernels = h2o_kernel_in_use<h2o_product_kernels>({
        { h2o_isa::AMX,         h2o_products_amx },
        { h2o_isa::AVX512_VNNI, h2o_products_avx512 },
        { h2o_isa::AVX_VNNI,    h2o_products_avxvnni },
        { h2o_isa::AVX2,        h2o_products_avx2 },
        { h2o_isa::I8MM,        h2o_products_i8mm },
        { h2o_isa::DOTPROD,     h2o_products_dotprod },
    });
    if (!kernels) {
        return nullptr;
    }
    const h2o_product_kernel * bf16 = h2o_kernel_in_use<h2o_product_kernel>({
        { h2o_isa::AMX,         h2o_product_amxbf16 },
        { h2o_isa::AVX512_BF16, h2o_product_avx512bf16 },
    });
    if (type == GGML_TYPE_BF16 && bf16) {
        return bf16;
    }
    switch (type) {
        case GGML_TYPE_Q4_0:   return &kernels->q4_0;
        case GGML_TYPE_Q4_1:   return &kernels->q4_1;
        case GGML_TYPE_Q5_0:   return &kernels->q5_0;
        case GGML_TYPE_Q5_1:   return &kernels->q5_1;
        case GGML_TYPE_Q8_0:   return &kernels->q8_0;
        case GGML_TYPE_IQ4_NL: return &kernels->iq4_nl;
        case GGML_TYPE_MXFP4:  return &kernels->mxfp4;
        case GGML_TYPE_Q2_K:   return &kernels->q2_k;
        case GGML_TYPE_Q3_K:   return &kernels->q3_k;
        case GGML_TYPE_Q4_K:   return &kernels->q4_k;
        case GGML_TYPE_Q5_K:   return &kernels->q5_k;
        case GGML_TYPE_Q6_K:   return &kernels->q6_k;
        case GGML_TYPE_IQ4_XS: return &kernels->iq4_xs;
        case GGML_TYPE_F16:    return &kernels->f16;
        case GGML_TYPE_BF16:   return &kernels->bf16;
        default:               return nullptr;
    }
}
