// The kernels of an instruction set. The file that includes this defines VL and KERNELS, and how steps are done.

#include "ggml/product/kernels/panels.h"
#include "ggml/product/kernels/direct.h"

namespace {

template <typename T>
constexpr h2o_product_kernel kernel_of() {
    using K = typename T::kind;
    return {
        T::BLOCKS, T::BYTES, VL, MAX_DIRECT<K>, layout<K>::PANEL_BLOCK, layout<K>::ROWS_BLOCK,
        pack_columns<K>, unpack_rows<T>, multiply<steps_of<K>>, column_bytes<K>, pack_column<K>, multiply_few<T>,
    };
}

const h2o_product_kernels kernels = {
    kernel_of<q4_0>(), kernel_of<q4_1>(), kernel_of<q5_0>(), kernel_of<q5_1>(), kernel_of<q8_0>(), kernel_of<iq4_nl>(),
    kernel_of<mxfp4>(), kernel_of<q2_k>(), kernel_of<q3_k>(), kernel_of<q4_k>(), kernel_of<q5_k>(), kernel_of<q6_k>(), kernel_of<iq4_xs>(),
};

} // namespace

const h2o_product_kernels * const KERNELS = &kernels;
