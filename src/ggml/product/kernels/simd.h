// The kernels of an instruction set. The file that includes this defines VL and KERNEL, the function's name.

#include "ggml/product/kernels/byte-panels.h"
#include "ggml/product/kernels/direct.h"

#if VL == 16
#include "ggml/product/kernels/floats.h"
#endif

h2o_product_kernels KERNEL;

namespace {

template <typename T>
const h2o_product_kernel * kernel_of(const T *) {
    using K = typename T::kind;
    using P = byte_panels<steps_of<K>>;
    static constexpr h2o_product_kernel kernel = {
        T::BLOCKS, T::BYTES, H2O_PRODUCT_Q8_0_BYTES, 64, VL, P::SPREADS ? 2 : 1, ROWS, 64,
        0, MAX_DIRECT<K>, 0, P::PANEL_BLOCK, P::ROWS_BLOCK,
        pack_columns<K>, unpack_rows<T>, multiply<P>, column_bytes<K>, pack_column<K>, multiply_few<T>,
    };
    return &kernel;
}

#if VL == 16
// Upstream's kernels are faster where MAX_FEW + 1 to MIN_PACKED - 1 columns do not fill panels, and for fewer
// columns than MIN_COLUMNS, as of a generated token: they read weights as fast as memory gives them.
const h2o_product_kernel * kernel_of_floats() {
    constexpr int MIN_COLUMNS = 4;
    constexpr int MAX_FEW     = 64;
    constexpr int MIN_PACKED  = 128;

    using P = float_panels;
    static constexpr h2o_product_kernel kernel = {
        1, FLOAT_BLOCK, H2O_PRODUCT_BLOCK*4, 8, VL, 1, ROWS, 64,
        MIN_COLUMNS, MAX_FEW, MIN_PACKED, P::PANEL_BLOCK, P::ROWS_BLOCK,
        pack_float_columns, unpack_float_rows, multiply<P>, float_column_bytes, pack_float_column, multiply_few_floats,
    };
    return &kernel;
}
#endif

} // namespace

const h2o_product_kernel * KERNEL(ggml_type type) {
#if VL == 16
    if (type == GGML_TYPE_F16) {
        return kernel_of_floats();
    }
#endif
    return for_type(type, [](auto * t) { return kernel_of(t); });
}
