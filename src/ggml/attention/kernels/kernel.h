#pragma once

// The part of ggml_h2o_attn that is compiled once for each instruction set. Its files include no headers with inline
// functions: the linker could take a copy that was compiled for another CPU.

#include "ggml.h"

// keys that are packed at once; numbers of keys and the head sizes are rounded up to this in packed K and V
constexpr int H2O_ATTN_PAD = 32;

constexpr int H2O_ATTN_MAX_ROWS = 64;

// keys of a block, unless they are in PANELS: in BYTES the weights of a row are rounded together
constexpr int H2O_ATTN_BLOCK_KEYS = 128;

// head sizes of keys that are read in place are multiples of this
constexpr int64_t H2O_ATTN_LANES = 16;

constexpr int64_t h2o_attn_pad(int64_t n) {
    return (n + H2O_ATTN_PAD - 1)/H2O_ATTN_PAD*H2O_ATTN_PAD;
}

// Keys or values in the cache.
struct h2o_attn_source {
    const char    * data;
    int64_t         stride; // bytes from row to row
    int64_t         size;   // bytes of a row
    const int32_t * rows;   // of each key; NULL: consecutive rows
    ggml_type       type;   // for kernels: F32, F16 or Q8_0
    int64_t         d;      // numbers of a row
};

// Keys and values are packed for products of many rows, or for products in integers (Q8_0 only), or read where they are.
enum class h2o_attn_form { PANELS, BYTES, ROWS };

// Some rows (query, head) and a block of keys of one KV head.
struct h2o_attn_tile {
    int     n_rows;
    int64_t d_k;
    int64_t d_v;

    const float   * q;       // multiplied by the scale; [n_rows][d_k], or packed
    int64_t         n_keys;  // PANELS: rounded up
    const int64_t * visible; // [n_rows] ascending: each row sees as many of the keys, the first ones
    float           softcap; // 0: none

    h2o_attn_form form;
    bool          is_rounded; // PANELS: all factors may have 8 bits, as K and V had
    const float * packed_k;
    const float * packed_v;

    // ROWS, and rows of the next block, which are prefetched
    h2o_attn_source k, next_k;
    h2o_attn_source v, next_v;
    int64_t         n_next;

    float * logits; // become weights; [rows][ld], n_rows rounded up to the kernel's row_step
    int64_t ld;

    // (m, l, l*o) of an online softmax
    float * o; // [rows][d_v rounded up]
    float * m; // [n_rows]
    float * l; // [n_rows]
};

struct h2o_attn_kernel {
    int n_rows;   // of a tile, at most
    int row_step; // that are computed together

    bool has_rounded_tiles; // many rows are multiplied by keys and values in Q8_0 in rounded PANELS, not in BYTES

    // rows [H2O_ATTN_PAD][d] into packed K (n_k rounded up x d rounded up floats) and V, whose first key is the key-th
    void (*pack_k)(const float * rows, int64_t d, int64_t key, int64_t n_k, void * k);
    void (*pack_v)(const float * rows, int64_t d, int64_t key, int64_t n_k, void * v);

    // queries [n_rows][d rounded up], as products with packed K take them; zeros after the d-th
    void (*pack_q)(float * q, int64_t n_rows, int64_t d);

    // The same in BYTES, for keys and values in Q8_0: H2O_ATTN_PAD of them from the key-th of n on; after the last
    // one it again.
    void (*pack_byte_q)(float * q, int64_t n_rows, int64_t d);
    void (*pack_bytes)(const h2o_attn_source & k, const h2o_attn_source & v, int64_t key, int64_t n, float * packed_k,
            float * packed_v);

    // Adds the block to the rows' state.
    void (*tile)(const h2o_attn_tile & t);

    // Adds the last block's weights, multiplied by each row's factor, to sums [n_keys]: row r counts in the first
    // counted[r] keys.
    void (*add_sums)(const h2o_attn_tile & t, const int64_t * counted, const float * factors, float * sums);

    // n rows of such keys from the key-th on, as float32 [n][d]
    void (*read)(const h2o_attn_source & x, int64_t key, int64_t n, float * dst);
};
