#pragma once

// The part of ggml_h2o_attn that is compiled once for each instruction set. Its files include no headers with inline
// functions: the linker could take a copy that was compiled for another CPU.

#include <stdint.h>

// numbers of keys and the head sizes are rounded up to this in packed K and V
constexpr int H2O_ATTN_PAD = 32;

// keys that are packed at once
constexpr int H2O_ATTN_KEYS = 32;

constexpr int H2O_ATTN_MAX_ROWS = 64;

// head sizes that are read in place are multiples of this
constexpr int64_t H2O_ATTN_LANES = 16;

constexpr int64_t h2o_attn_pad(int64_t n) {
    return (n + H2O_ATTN_PAD - 1)/H2O_ATTN_PAD*H2O_ATTN_PAD;
}

// How a kernel that reads K and V where they lie finds their numbers.
enum h2o_attn_type {
    H2O_ATTN_F32,
    H2O_ATTN_F16,
    H2O_ATTN_BF16,
    H2O_ATTN_Q8_0,
};

// Keys or values that are read where they lie.
struct h2o_attn_source {
    const void    * data;
    int64_t         stride; // bytes from row to row
    int64_t         size;   // bytes of a row
    const int32_t * rows;   // of each key
    h2o_attn_type   type;
};

// Packed keys and values. Row r of a tile sees the first visible[r] of them, which ascend.
struct h2o_attn_keys {
    int64_t         n;       // rounded up; 0: there are none
    const void    * k;       // not packed where no row sees them
    const void    * v;
    const int64_t * visible; // [n_rows]
};

// Some rows (query, head) of one KV head, and the keys that they see: own ones, and further ones, whose logits begin at column
// own.n. All numbers are finite and their products do not overflow. Every row sees an own key.
struct h2o_attn_tile {
    int     n_rows;
    int64_t d_k;
    int64_t d_v;

    const float   * q;       // [n_rows][d_k], multiplied by the scale
    h2o_attn_keys   own;
    const int64_t * counted; // [n_rows] own keys whose sums each row adds to if it sees them
    h2o_attn_keys   further;

    float         softcap; // 0: none
    const float * sinks;   // [n_rows] or NULL

    // keys and values that are packed after this tile: they are asked for in time
    h2o_attn_source next_k;
    h2o_attn_source next_v;
    int64_t         n_next;

    float * logits;  // scratch, [rows][ld], n_rows rounded up to the kernel's row_step
    int64_t ld;
    float * q_pairs; // scratch, [rows][d_k rounded up]

    float * o;    // [rows][d_v rounded up], the first n_rows are set
    float * m;    // [n_rows] with the sink
    float * l;    // [n_rows] likewise
    float * sums; // [own.n], added to, or NULL
};

// Rows (query, head) of one KV head and a block of keys.
struct h2o_attn_in_place {
    int     n_rows;
    int64_t d_k;
    int64_t d_v;
    int64_t n_k;

    const float   * q;       // [n_rows][d_k], multiplied by the scale
    const int64_t * visible; // [n_rows] the first ones, with those that each row sees
    h2o_attn_source k;
    h2o_attn_source v;
    float           softcap; // 0: none

    // keys that are read after this block: they are asked for in time
    h2o_attn_source next;
    int64_t         n_next;

    float * logits; // scratch, [n_rows][ld]
    int64_t ld;     // n_k rounded up, or more

    float * o;    // [n_rows][ld_o]
    int64_t ld_o;
    float * m;    // [n_rows]
    float * l;    // [n_rows]
};

struct h2o_attn_kernel {
    int n_rows;   // of a tile, at most
    int row_step; // that are computed together

    // rows [H2O_ATTN_KEYS][d] into packed K (n_k rounded up x d rounded up floats) and V, whose first key is the key-th
    void (*pack_k)(const float * rows, int64_t d, int64_t key, int64_t n_k, void * k);
    void (*pack_v)(const float * rows, int64_t d, int64_t key, int64_t n_k, void * v);

    // Returns whether all results were finite; if not, o, m and l may be anything, and nothing is added to the sums.
    bool (*tile)(const h2o_attn_tile & t);

    // Returns whether all numbers were finite; if not, o, m and l may be anything.
    bool (*in_place)(const h2o_attn_in_place & t);
};

// NULL where the compiler has no such instructions
extern const h2o_attn_kernel * const h2o_attn_portable;
extern const h2o_attn_kernel * const h2o_attn_avx2;
extern const h2o_attn_kernel * const h2o_attn_avx512;
extern const h2o_attn_kernel * const h2o_attn_amx;
