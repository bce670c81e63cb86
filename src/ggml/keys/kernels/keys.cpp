#include "ggml/keys/keys.h"

#include "ggml/attention/kernels/isa.h"
#include "ggml/keys/kernels/kernel.h"

static const h2o_keys_kernel & kernel_in_use() {
#if defined(__x86_64__)
    const h2o_isa isa = h2o_isa_in_use();
    if (isa >= h2o_isa::AVX512) {
        return *h2o_keys_avx512;
    }
    if (isa >= h2o_isa::AVX2) {
        return *h2o_keys_avx2;
    }
#endif
    return *h2o_keys_portable;
}

void ggml_h2o_hadamard(float * x, int64_t n, int64_t size) {
    kernel_in_use().hadamard(x, n, size);
}

void ggml_h2o_widen_f16(const ggml_fp16_t * x, int64_t n, float * y) {
    kernel_in_use().widen(x, n, y);
}
