// The kernels of an instruction set. The file that includes this defines VL and KERNEL, the function's name.

#include "ggml/product/kernels/byte-panels.h"
#include "ggml/product/kernels/direct.h"

h2o_product_kernels KERNEL;

namespace {

template <typename T>
const h2o_product_kernel * kernel_of(const T *) {
    using K = typename T::kind;
    using P = byte_panels<steps_of<K>>;
    static constexpr h2o_product_kernel kernel = {
        T::BLOCKS, T::BYTES, H2O_PRODUCT_Q8_0_BYTES, 64, VL, P::SPREADS ? 2 : 1, ROWS, 64,
        0, MAX_DIRECT<K>, P::PANEL_BLOCK, P::ROWS_BLOCK,
        pack_columns<K>, unpack_rows<T>, multiply<P>, column_bytes<K>, pack_column<K>, multiply_few<T>,
    };
    return &kernel;
}

} // namespace

const h2o_product_kernel * KERNEL(ggml_type type) {
    return for_type(type, [](auto * t) { return kernel_of(t); });
}
