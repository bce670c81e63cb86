#pragma once

// Kernels of products with weights, compiled once for each instruction set. Their files include no headers with inline
// functions: the linker could take a copy that was compiled for another CPU.

#include "ggml.h"

// numbers of a block
constexpr int H2O_PRODUCT_BLOCK = 32;

// bytes of a column's block in Q8_0: a scale in F16, then the numbers
constexpr int H2O_PRODUCT_Q8_0_BYTES = 34;

// rows of weights that are multiplied at once, except by tiles
constexpr int H2O_PRODUCT_ROWS = 4;

// bytes of rows that are prefetched before few columns are multiplied
constexpr int64_t H2O_PRODUCT_AHEAD = 2048;

// Rows by columns, over a slice of their blocks.
struct h2o_product_slice {
    const char * rows;         // unpacked
    int64_t      n_rows;
    const char * panels;       // the slice's first block of the first panel
    int64_t      panel_stride;
    int64_t      n_columns;
    int64_t      n_blocks;
    int          spread;       // lanes of a column, as when it was packed
    float      * sums;         // [panels][groups][group_rows][n_lanes] of earlier slices, or NULL with one slice
    bool         is_first;
    bool         is_last;      // the results are stored in dst
    float * const * dst;       // row i of column j is dst[j][row + i]
    int64_t      row;
};

// Rows by few columns. The rows are read in place.
struct h2o_product_direct {
    const char * rows;
    int64_t      stride;
    int64_t      n_rows;
    const char * columns;       // packed
    int64_t      column_stride;
    int64_t      n_columns;
    int64_t      n_blocks;
    float * const * dst;        // as above
    int64_t      row;
};

// Of one type of weights. A unit has one block, or 8 blocks with common scales.
//
// A panel has n_lanes columns, or n_lanes/2 columns that take two neighbouring lanes each. Its blocks follow one
// another: the first 4 bytes of numbers of each lane, the next 4 bytes, and so on; the lanes' scales in F32; and sums, if the type needs them. Numbers in F32 and BF16 have no scale.
//
// A group has group_rows rows of weights, unpacked. Its blocks have the first 4 bytes of numbers of each row, the next
// 4 bytes, and so on; then the rows' scales, and minimums if the type has any. For tiles, see amx.h.
struct h2o_product_kernel {
    int     unit_blocks;
    int64_t unit_bytes;
    int64_t column_block; // bytes of a column's block: H2O_PRODUCT_Q8_0_BYTES, or 32 floats

    int     slice_blocks; // of a slice, which fits into the L2 cache
    int     n_lanes;
    int     max_spread;   // lanes of a column if there are at most n_lanes/2 columns
    int     group_rows;
    int     max_rows;     // unpacked at once
    int     min_columns;  // fewer are multiplied by the next kernel
    int     max_direct;   // most columns for which rows are read in place
    int64_t panel_block;  // bytes of a block of a panel
    int64_t rows_block;   // bytes of a block of a group

    // n columns, each in `spread` lanes. The other lanes repeat the last column.
    void (*pack_columns)(const char * const * columns, int n, int spread, int64_t n_blocks, char * panel);

    // n rows, at most group_rows, from a unit's start. The group's other rows repeat the last row.
    void (*unpack_rows)(const char * rows, int64_t stride, int n, int64_t n_blocks, char * dst);

    void (*multiply)(const h2o_product_slice & slice);

    // bytes of a packed column for multiply_direct
    int64_t (*column_bytes)(int64_t n_blocks);

    // n of a column's n_blocks blocks, from `first` on
    void (*pack_column)(const char * column, int64_t first, int64_t n, int64_t n_blocks, char * dst);

    void (*multiply_direct)(const h2o_product_direct & direct);
};

// The kernels of an instruction set. NULL for types without one.
typedef const h2o_product_kernel * h2o_product_kernels(ggml_type type);
