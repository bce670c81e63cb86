#include "ggml/attention/kernels/kernels.h"

#include "ggml/simd/isa.h"

const h2o_attn_kernel & h2o_attn_kernel_in_use() {
    return *h2o_kernel_in_use<h2o_attn_kernel>({
        { h2o_isa::AMX,      h2o_attn_amx },
        { h2o_isa::AVX512,   h2o_attn_avx512 },
        { h2o_isa::AVX2,     h2o_attn_avx2 },
        { h2o_isa::PORTABLE, h2o_attn_portable },
    });
}
