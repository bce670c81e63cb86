#pragma once

// The part of ggml_h2o_attn that is compiled once for each instruction set. Its files include no headers with inline
// functions: the linker could take a copy that was compiled for another CPU.

#include <stdint.h>

// n_k and the head sizes are rounded up to this in packed K and V
constexpr int H2O_ATTN_PAD = 32;

// keys that are packed at once
constexpr int H2O_ATTN_KEYS = 32;

constexpr int H2O_ATTN_MAX_ROWS = 64;

constexpr int64_t h2o_attn_pad(int64_t n) {
    return (n + H2O_ATTN_PAD - 1)/H2O_ATTN_PAD*H2O_ATTN_PAD;
}

// Some rows (query, head) of one KV head. All numbers are finite and their products do not overflow, and every row sees
// one of the first keys.
struct h2o_attn_tile {
    int     n_rows;
    int64_t d_k;
    int64_t d_v;
    int64_t n_k; // rounded up

    const float   * q;       // [n_rows][d_k], multiplied by the scale
    const int64_t * visible; // [n_rows] keys that each row sees, ascending
    const int64_t * counted; // [n_rows] keys whose sums each row adds to if it sees them
    const void    * k;       // packed
    const void    * v;       // packed

    // Further keys. Their logits begin at column n_k, and they have no sums.
    int64_t         n_k2;     // rounded up
    const int64_t * hidden2;  // [n_rows] the first ones, which each row does not see, ascending; not packed where no row sees them
    const int64_t * visible2; // [n_rows] the first ones, with those that each row sees, ascending, at least hidden2
    const void    * k2;       // packed
    const void    * v2;       // packed

    float * logits; // scratch, [H2O_ATTN_MAX_ROWS][ld]
    int64_t ld;
    float * split;  // scratch, [H2O_ATTN_MAX_ROWS][d_k rounded up]

    float * o;    // [H2O_ATTN_MAX_ROWS][d_v rounded up], the first n_rows are set
    float * m;    // [n_rows]
    float * l;    // [n_rows]
    float * sums; // [n_k], added to, or NULL
};

struct h2o_attn_kernel {
    const char * name;
    int          n_rows;        // of a tile
    bool         has_more_keys; // whether a tile may have further keys

    // rows [H2O_ATTN_KEYS][d] into packed K (n_k rounded up x d rounded up floats) and V, whose first key is the key-th
    void (*pack_k)(const float * rows, int64_t d, int64_t key, int64_t n_k, void * k);
    void (*pack_v)(const float * rows, int64_t d, int64_t key, int64_t n_k, void * v);

    void (*tile)(const h2o_attn_tile & t);
};

// NULL where the compiler has no such instructions
extern const h2o_attn_kernel * const h2o_attn_portable;
extern const h2o_attn_kernel * const h2o_attn_avx2;
extern const h2o_attn_kernel * const h2o_attn_avx512;
extern const h2o_attn_kernel * const h2o_attn_amx;
