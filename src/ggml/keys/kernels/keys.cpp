#include "ggml/keys/keys.h"

#include "ggml/keys/kernels/kernel.h"
#include "ggml/simd/isa.h"

static const h2o_keys_kernel & kernel_in_use() {
    return *h2o_kernel_in_use<h2o_keys_kernel>({
        { h2o_isa::AVX512,   h2o_keys_avx512 },
        { h2o_isa::AVX2,     h2o_keys_avx2 },
        { h2o_isa::PORTABLE, h2o_keys_portable },
    });
}

void ggml_h2o_hadamard(float * x, int64_t n, int64_t size) {
    kernel_in_use().hadamard(x, n, size);
}

void ggml_h2o_widen_f16(const ggml_fp16_t * x, int64_t n, float * y) {
    kernel_in_use().widen(x, n, y);
}
