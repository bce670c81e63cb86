#pragma once

// Columns that are multiplied by the same rows of weights: how they are packed, and their products.

#include "ggml/product/kernels/kernel.h"

#include <cstddef>

struct h2o_packed {
    const h2o_product_kernel & kernel;

    int64_t n_columns;
    int64_t n_blocks;
    bool    is_direct;     // rows are read where they lie
    int     spread;        // lanes for each column
    int64_t panel_columns;
    int64_t n_panels;
    int64_t panel_size;    // bytes, of a column if they are few

    h2o_packed(const h2o_product_kernel & kernel, int64_t n_columns, int64_t n_blocks);

    int64_t size() const { return n_panels*panel_size; }

    // rows that are multiplied at once: an item of work has a multiple of them
    int64_t item_step() const { return is_direct ? H2O_PRODUCT_ROWS : kernel.group_rows; }

    // n blocks of a panel's columns, from `first` on.
    void pack(const char * const * columns, int64_t panel, int64_t first, int64_t n, char * packed) const;

    // bytes that a thread needs to multiply up to H2O_PRODUCT_MAX_ROWS rows at once
    size_t scratch_size() const;

    // n rows by all columns: row i by column j is dst[j][row + i]
    void multiply(const char * packed, const char * rows, int64_t stride, int64_t n, char * scratch, float * const * dst, int64_t row) const;

private:
    int64_t slice() const;
    int64_t step() const;
};

// of weights in an item of work, unless rows are read where they lie
constexpr int64_t H2O_PRODUCT_MAX_ROWS = 64;
