#if defined(__AVX512BF16__) && defined(__AMX_BF16__)

#define VL 16

#include "ggml/product/kernels/bf16-pairs.h"
#include "ggml/product/kernels/float-kernel.h"
#include "ggml/product/kernels/float-tiles.h"

namespace {

constexpr h2o_product_kernel make_kernel() {
    h2o_product_kernel kernel = float_kernel_of<bf16_pairs>(true);
    kernel.min_packed   = 0;
    kernel.group_rows   = float_tiles::GROUP_ROWS;
    kernel.panel_block  = float_tiles::PANEL_BLOCK;
    kernel.rows_block   = float_tiles::ROWS_BLOCK;
    kernel.pack_columns = pack_float_columns<pair_kind, true>;
    kernel.unpack_rows  = copy_rows;
    kernel.multiply     = multiply<float_tiles>;
    return kernel;
}

constexpr h2o_product_kernel kernel = make_kernel(); // nothing of this file runs before it is known that the CPU can

} // namespace

const h2o_product_kernel * const h2o_product_amxbf16 = &kernel;

#else

#include "ggml/product/kernels/kernel.h"

const h2o_product_kernel * const h2o_product_amxbf16 = nullptr;

#endif
