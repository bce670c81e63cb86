#pragma once

// The part of products with weights that is compiled once for each instruction set. Its files include no headers with
// inline functions: the linker could take a copy that was compiled for another CPU.

#include <stdint.h>

// numbers of a block
constexpr int H2O_PRODUCT_BLOCK = 32;

// bytes of one of a column, if that is rounded to Q8_0: a scale in F16, then the numbers
constexpr int H2O_PRODUCT_Q8_0_BYTES = 34;

// more columns than there are
constexpr int H2O_PRODUCT_NEVER = INT32_MAX;

// rows of weights that are multiplied at once, if not by tiles
constexpr int H2O_PRODUCT_ROWS = 4;

// bytes of rows that are asked for before they are multiplied by few columns
constexpr int64_t H2O_PRODUCT_AHEAD = 2048;

// Rows by columns, over a slice of their blocks.
struct h2o_product_slice {
    const char * rows;         // unpacked
    int64_t      n_rows;
    const char * panels;       // the slice's first block of the first one
    int64_t      panel_stride;
    int64_t      n_columns;
    int64_t      n_blocks;
    int          spread;       // lanes for each column, as when it was packed
    float      * sums;         // [panels][groups][group_rows][n_lanes] of the slices before
    bool         is_first;     // there are none, sums may be NULL if it is the last one, too
    bool         is_last;      // the sums go to dst instead
    float * const * dst;       // row i of column j is dst[j][row + i]
    int64_t      row;
};

// Rows by few columns, for which they are read where they lie.
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

// Of one type of weights. It has units of one block, or of 8 with scales in common.
//
// Quantized weights are multiplied by columns in Q8_0, others by columns in F32.
//
// A panel has n_lanes columns: or half of them, each in 2 lanes side by side, which are multiplied by as many rows at once. It has block after block: 4 bytes of numbers for each lane, 4 more, and so on, then the lanes' scales in F32, and what the
// type and the instruction set need besides.
//
// Of group_rows rows of weights, a group, unpacked blocks follow one another: 4 bytes of numbers of each row, and so on, or for tiles row
// after row; after bytes the rows' scales, and minimums if the type has any.
struct h2o_product_kernel {
    int     unit_blocks;
    int64_t unit_bytes;
    int64_t column_block; // bytes of one of a column: H2O_PRODUCT_Q8_0_BYTES, or 4 for each number

    int     slice_blocks; // of rows and columns that are multiplied at once: in the L2 cache
    int     n_lanes;
    int     max_spread;  // lanes for each of up to n_lanes/2 columns
    int     group_rows;  // of weights that are multiplied at once
    int     min_columns; // fewer are upstream's
    int     max_direct;  // up to so many columns are multiplied by rows where they lie
    int     min_packed;  // more than that, but fewer than this, are upstream's, too
    int64_t panel_block; // bytes of a block of a panel
    int64_t rows_block;  // and of a group

    // n columns, each in `spread` lanes. Lanes that have none repeat the last one.
    void (*pack_columns)(const char * const * columns, int n, int spread, int64_t n_blocks, char * panel);

    // n rows, at most group_rows, from a unit's start. Missing ones repeat the last one.
    void (*unpack_rows)(const char * rows, int64_t stride, int n, int64_t n_blocks, char * dst);

    void (*multiply)(const h2o_product_slice & slice);

    // A column of n_blocks, and n of its blocks, from `first` on, into it.
    int64_t (*column_bytes)(int64_t n_blocks);
    void (*pack_column)(const char * column, int64_t first, int64_t n, int64_t n_blocks, char * dst);

    void (*multiply_direct)(const h2o_product_direct & direct);
};

struct h2o_product_kernels {
    h2o_product_kernel q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl, mxfp4, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs, f16, bf16;
};

// NULL where the compiler has no such instructions
extern const h2o_product_kernels * const h2o_products_dotprod; // NEON
extern const h2o_product_kernels * const h2o_products_i8mm;
extern const h2o_product_kernels * const h2o_products_avx2;
extern const h2o_product_kernels * const h2o_products_avxvnni;
extern const h2o_product_kernels * const h2o_products_avx512; // with VNNI
extern const h2o_product_kernels * const h2o_products_amx;
extern const h2o_product_kernel  * const h2o_product_avx512bf16; // of BF16
extern const h2o_product_kernel  * const h2o_product_amxbf16;
