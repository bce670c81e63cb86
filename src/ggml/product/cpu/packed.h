#pragma once

// Columns that are multiplied by the same rows of weights: how they are packed, and their products.

#include "ggml/product/kernels/kernel.h"

#include <cstddef>

struct h2o_packed {
    const h2o_product_kernel & kernel;

    int64_t n_columns;
    int64_t n_blocks;
    bool    is_direct;     // rows are read in place
    int     spread;        // lanes of a column
    int64_t panel_columns;
    int64_t n_panels;
    int64_t panel_size;    // bytes; of a column if rows are read in place

    h2o_packed(const h2o_product_kernel & kernel, int64_t n_columns, int64_t n_blocks);

    int64_t size() const { return n_panels*panel_size; }

    // an item of work has a multiple of these rows
    int64_t item_step() const { return is_direct ? H2O_PRODUCT_ROWS : kernel.group_rows; }

    // packs n blocks of a panel's columns, from `first` on
    void pack(const char * const * columns, int64_t panel, int64_t first, int64_t n, char * packed) const;

    // bytes that a thread needs to multiply
    size_t scratch_size() const;

    // n rows by all columns: row i by column j is dst[j][row + i]
    void multiply(const char * packed, const char * rows, int64_t stride, int64_t n, char * scratch,
        float * const * dst, int64_t row) const;

private:
    int64_t slice() const;
    int64_t step() const;
};
