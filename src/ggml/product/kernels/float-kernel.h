// The kernel of a type whose numbers are multiplied as dwords.

#include "ggml/product/kernels/float-panels.h"
#include "ggml/product/kernels/float-direct.h"

namespace {

// fewer columns, as of a generated token, upstream multiplies faster
constexpr int MIN_FLOATS = 4;

// more columns are multiplied faster in panels
constexpr int MAX_FLOAT_DIRECT = 32;

template <typename T>
constexpr h2o_product_kernel float_kernel_of() {
    using K = typename T::kind;
    using P = float_panels<K>;
    return {
        1, FLOAT_BLOCK, H2O_PRODUCT_BLOCK*4, 8, VL, MIN_FLOATS, MAX_FLOAT_DIRECT, P::PANEL_BLOCK, P::ROWS_BLOCK,
        pack_float_columns<K>, unpack_float_rows<T>, multiply<P>, float_column_bytes<K>, pack_float_column<K>,
        multiply_few_floats<T>,
    };
}

} // namespace
