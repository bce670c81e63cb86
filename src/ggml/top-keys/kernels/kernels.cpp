#include "ggml/top-keys/kernels/kernels.h"

#include "ggml/simd/isa.h"

const h2o_index_kernel & h2o_index_kernel_in_use() {
    return *h2o_kernel_in_use<h2o_index_kernel>({
        { h2o_isa::AVX512_VNNI, h2o_index_avx512 },
        { h2o_isa::AVX2,        h2o_index_avx2 },
        { h2o_isa::PORTABLE,    h2o_index_portable },
    });
}
