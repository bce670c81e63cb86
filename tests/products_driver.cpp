// Products by the kernels of one instruction set, for tests/test_products.py: cases come from standard input, results are
// written to standard output.

#include "ggml/product/cpu/packed.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

h2o_product_kernels KERNEL;

static std::vector<char> read(size_t n) {
    std::vector<char> data(n);
    if (fread(data.data(), 1, n, stdin) != n) {
        fprintf(stderr, "the input ends early\n");
        exit(1);
    }
    return data;
}

int main() {
    int     type;
    int64_t n_rows, n, n_columns;
    while (scanf("%d %ld %ld %ld", &type, &n_rows, &n, &n_columns) == 4) {
        getchar(); // the line's end
        const h2o_product_kernel & kernel = *KERNEL((ggml_type) type);

        const int64_t n_blocks = n/H2O_PRODUCT_BLOCK;
        const int64_t stride   = n_blocks/kernel.unit_blocks*kernel.unit_bytes;

        const std::vector<char> weights = read(n_rows*stride);
        const std::vector<char> columns = read(n_columns*n_blocks*kernel.column_block);

        const h2o_packed packed(kernel, n_columns, n_blocks);
        std::vector<char>    panels(packed.size());
        std::vector<char>    scratch(packed.scratch_size());
        std::vector<float>   results(n_rows*n_columns);
        std::vector<float *> to(n_columns);

        std::vector<const char *> sources(n_columns);
        for (int64_t j = 0; j < n_columns; ++j) {
            sources[j] = columns.data() + j*n_blocks*kernel.column_block;
            to[j]        = results.data() + j*n_rows;
        }
        for (int64_t p = 0; p < packed.n_panels; ++p) {
            packed.pack(&sources[p*packed.panel_columns], p, 0, n_blocks, panels.data());
        }
        packed.multiply(panels.data(), weights.data(), stride, n_rows, scratch.data(), to.data(), 0);

        fwrite(results.data(), sizeof(float), results.size(), stdout);
    }
}
