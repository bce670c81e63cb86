#include "ggml/product/cpu/packed.h"

#include "ggml/work.h"

#include <algorithm>

h2o_packed::h2o_packed(const h2o_product_kernel & kernel, int64_t n_columns, int64_t n_blocks)
    : kernel(kernel), n_columns(n_columns), n_blocks(n_blocks) {
    is_direct     = n_columns > 0 && n_columns <= kernel.max_direct; // a group may have none
    spread        = n_columns <= kernel.n_lanes/2 ? kernel.max_spread : 1;
    panel_columns = is_direct ? 1 : kernel.n_lanes/spread;
    n_panels      = h2o_ceil_div(n_columns, panel_columns);
    panel_size    = h2o_ceil_div(is_direct ? kernel.column_bytes(n_blocks) : n_blocks*kernel.panel_block, 64)*64;
}

int64_t h2o_packed::slice() const {
    return std::min<int64_t>(n_blocks, kernel.slice_blocks);
}

// With few columns, unpacked rows are used little, and stay in the L1 cache.
int64_t h2o_packed::step() const {
    return n_panels <= 2 ? kernel.group_rows : kernel.max_rows;
}

void h2o_packed::pack(const char * const * columns, int64_t panel, int64_t first, int64_t n, char * packed) const {
    char * dst = packed + panel*panel_size;
    if (is_direct) {
        kernel.pack_column(*columns, first, n, n_blocks, dst);
    } else {
        const int64_t n_packed = std::min(panel_columns, n_columns - panel*panel_columns);
        kernel.pack_columns(columns, (int) n_packed, spread, n, dst + first*kernel.panel_block);
    }
}

static int64_t bytes_of_rows(const h2o_product_kernel & kernel, int64_t n_rows, int64_t n_blocks) {
    return h2o_ceil_div(n_rows/kernel.group_rows*n_blocks*kernel.rows_block, 64)*64;
}

size_t h2o_packed::scratch_size() const {
    if (is_direct) {
        return 0;
    }
    const int64_t n_sums = slice() < n_blocks ? n_panels*step()*kernel.n_lanes : 0;
    return bytes_of_rows(kernel, step(), slice()) + n_sums*sizeof(float);
}

void h2o_packed::multiply(const char * packed, const char * rows, int64_t stride, int64_t n, char * scratch,
        float * const * dst, int64_t row) const {
    if (is_direct) {
        return kernel.multiply_direct({ rows, stride, n, packed, panel_size, n_columns, n_blocks, dst, row });
    }

    h2o_product_slice s;
    s.rows         = scratch;
    s.panel_stride = panel_size;
    s.n_columns    = n_columns;
    s.spread       = spread;
    s.sums         = (float *) (scratch + bytes_of_rows(kernel, step(), slice()));
    s.dst          = dst;

    for (int64_t start = 0; start < n; start += step()) {
        s.n_rows = std::min(step(), n - start);
        s.row    = row + start;

        for (int64_t block = 0; block < n_blocks; block += slice()) {
            s.panels   = packed + block*kernel.panel_block;
            s.n_blocks = std::min(slice(), n_blocks - block);
            s.is_first = block == 0;
            s.is_last  = block + s.n_blocks == n_blocks;

            const char * src = rows + start*stride + block/kernel.unit_blocks*kernel.unit_bytes;
            for (int64_t i = 0; i < s.n_rows; i += kernel.group_rows) {
                const int n_group = (int) std::min<int64_t>(kernel.group_rows, s.n_rows - i);
                char * group = scratch + i/kernel.group_rows*s.n_blocks*kernel.rows_block;
                kernel.unpack_rows(src + i*stride, stride, n_group, s.n_blocks, group);
            }
            kernel.multiply(s);
        }
    }
}
