// Products by the kernels of one instruction set (H2O_KERNELS), for tools/check_products.py: cases come from standard input, results go
// to standard output.

#include "ggml/product/cpu/packed.h"

#include <cstdio>
#include <map>
#include <string>
#include <vector>

static const std::map<std::string, h2o_product_kernel h2o_product_kernels::*> TYPES = {
    { "q4_0", &h2o_product_kernels::q4_0 }, { "q4_1", &h2o_product_kernels::q4_1 }, { "q5_0", &h2o_product_kernels::q5_0 },
    { "q5_1", &h2o_product_kernels::q5_1 }, { "q8_0", &h2o_product_kernels::q8_0 }, { "iq4_nl", &h2o_product_kernels::iq4_nl },
    { "mxfp4", &h2o_product_kernels::mxfp4 }, { "q2_K", &h2o_product_kernels::q2_k }, { "q3_K", &h2o_product_kernels::q3_k },
    { "q4_K", &h2o_product_kernels::q4_k }, { "q5_K", &h2o_product_kernels::q5_k }, { "q6_K", &h2o_product_kernels::q6_k },
    { "iq4_xs", &h2o_product_kernels::iq4_xs }, { "f16", &h2o_product_kernels::f16 }, { "bf16", &h2o_product_kernels::bf16 },
};

static std::vector<char> read(size_t n) {
    std::vector<char> data(n);
    if (fread(data.data(), 1, n, stdin) != n) {
        fprintf(stderr, "the input ends early\n");
        exit(1);
    }
    return data;
}

int main() {
    char    type[16];
    int64_t n_rows, n, n_columns;
    while (scanf("%15s %ld %ld %ld", type, &n_rows, &n, &n_columns) == 4) {
        getchar(); // the line's end
        const h2o_product_kernel & kernel = H2O_KERNELS->*TYPES.at(type);

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
