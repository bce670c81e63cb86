// The kernel of a type whose numbers are multiplied as dwords.

#include "ggml/product/kernels/float-panels.h"
#include "ggml/product/kernels/float-direct.h"

namespace {

// more columns are multiplied faster in panels, if these are nearly full
constexpr int MAX_FLOAT_DIRECT = 64;
constexpr int MIN_FLOAT_PACKED = 128;

// Fewer columns, as of a generated token, are upstream's: its kernels read weights as fast as memory gives them.
constexpr int MIN_FLOATS = 4;

template <typename T>
constexpr h2o_product_kernel float_kernel_of(bool is_faster) {
    using K = typename T::kind;
    using P = float_panels<K>;
    return {
        1, FLOAT_BLOCK, H2O_PRODUCT_BLOCK*4, 8, VL, P::SPREADS ? 2 : 1, P::GROUP_ROWS,
        is_faster ? MIN_FLOATS : H2O_PRODUCT_NEVER, MAX_FLOAT_DIRECT, is_faster ? MIN_FLOAT_PACKED : H2O_PRODUCT_NEVER,
        P::PANEL_BLOCK, P::ROWS_BLOCK,
        pack_float_columns<K>, unpack_float_rows<T>, multiply<P>, float_column_bytes<K>, pack_float_column<K>, multiply_few_floats<T>,
    };
}

} // namespace
