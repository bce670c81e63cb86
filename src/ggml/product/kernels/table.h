// The kernels of an instruction set. The file that includes this defines VL and KERNELS, and how steps are done; TILES if by AMX.

#if defined(TILES)
#include "ggml/product/kernels/tiles.h"
#else
#include "ggml/product/kernels/byte-vectors.h"
#endif
#include "ggml/product/kernels/direct.h"
#include "ggml/product/kernels/float-kernel.h"

namespace {

template <typename T>
constexpr h2o_product_kernel kernel_of() {
    using K = typename T::kind;
    using P = byte_panels<steps_of<K>>;
    return {
        T::BLOCKS, T::BYTES, H2O_PRODUCT_Q8_0_BYTES, 64, VL, P::SPREADS ? 2 : 1, P::GROUP_ROWS, 0, MAX_DIRECT<K>, 0, layout<K>::PANEL_BLOCK, layout<K>::ROWS_BLOCK,
        pack_columns<K>, unpack_rows<T>, multiply<P>, column_bytes<K>, pack_column<K>, multiply_few<T>,
    };
}

const h2o_product_kernels kernels = {
    kernel_of<q4_0>(), kernel_of<q4_1>(), kernel_of<q5_0>(), kernel_of<q5_1>(), kernel_of<q8_0>(), kernel_of<iq4_nl>(),
    kernel_of<mxfp4>(), kernel_of<q2_k>(), kernel_of<q3_k>(), kernel_of<q4_k>(), kernel_of<q5_k>(), kernel_of<q6_k>(), kernel_of<iq4_xs>(),
    float_kernel_of<f16>(VL == 16), float_kernel_of<bf16>(true), // on AVX2 upstream's F16 is as fast, on Arm it is unknown
};

} // namespace

const h2o_product_kernels * const KERNELS = &kernels;
