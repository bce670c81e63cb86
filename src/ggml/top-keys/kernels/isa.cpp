#include "ggml/top-keys/kernels/isa.h"

#include "ggml/attention/kernels/isa.h"

const h2o_index_kernel & h2o_index_kernel_in_use() {
#if defined(__x86_64__)
    const h2o_isa isa = h2o_isa_in_use();
    if (isa == h2o_isa::AVX512_VNNI && h2o_index_avx512) {
        return *h2o_index_avx512;
    }
    if (isa >= h2o_isa::AVX2 && h2o_index_avx2) {
        return *h2o_index_avx2;
    }
#endif
    return *h2o_index_portable;
}
