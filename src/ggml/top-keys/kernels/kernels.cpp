#include "ggml/top-keys/kernels/kernels.h"

#include "ggml/simd/isa.h"
#include "h2o-kernels.h"

#define DECLARE(isa, kernel) extern const h2o_index_kernel kernel;
H2O_TOP_KEYS_KERNELS(DECLARE)

#define ENTRY(isa, kernel) { h2o_isa::isa, &kernel },

const h2o_index_kernel & h2o_index_kernel_in_use() {
    return *h2o_kernel_in_use<h2o_index_kernel>({ H2O_TOP_KEYS_KERNELS(ENTRY) });
}
