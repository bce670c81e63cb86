#pragma once

// The part of ggml_h2o_attn that is compiled once for each instruction set. Its files include no headers with inline
// functions: the linker could take a copy that was compiled for another CPU.

#include "ggml.h"

// numbers of keys and the head sizes are rounded up to this in packed K and V
constexpr int H2O_ATTN_PAD = 32;

// keys that are packed at once
constexpr int H2O_ATTN_KEYS = 32;

constexpr int H2O_ATTN_MAX_ROWS = 64;

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
    const int32_t * rows;   // of each key; except for kernels, NULL: consecutive rows
    ggml_type       type;   // for kernels: F32, F16, BF16 or Q8_0
    int64_t         d;      // numbers of a row
};

// Row r of a tile sees the first visible[r] of these keys. visible ascends.
struct h2o_attn_keys {
    int64_t         n;       // packed ones: rounded up; 0: there are none
    const int64_t * visible; // [n_rows]
    const void    * k;       // packed, unless no row sees them
    const void    * v;
};

// Some rows (query, head) of one KV head. With packed keys, every row sees a key of keys[0], and sinks are finite.
struct h2o_attn_tile {
    int     n_rows;
    int64_t d_k;
    int64_t d_v;

    const float   * q;       // [n_rows][d_k], multiplied by the scale
    h2o_attn_keys   keys[2]; // of the head, and extra keys: their logits begin at column keys[0].n
    const int64_t * counted; // [n_rows] keys of the head whose sums each row adds to if it sees them

    float         softcap; // 0: none
    const float * sinks;   // [n_rows] or NULL

    // of keys[0], if they are read in place
    h2o_attn_source k;
    h2o_attn_source v;

    // keys and values that are read after this tile, and prefetched; in place: keys only
    h2o_attn_source next_k;
    h2o_attn_source next_v;
    int64_t         n_next;

    float * logits;  // scratch, [rows][ld], n_rows rounded up to the kernel's row_step
    int64_t ld;
    float * q_pairs; // scratch, [rows][d_k rounded up]

    float * o;    // [rows][d_v rounded up], the first n_rows are set
    float * m;    // [n_rows] with the sink
    float * l;    // [n_rows] likewise
    float * sums; // [keys[0].n], added to, or NULL
};

struct h2o_attn_kernel {
    int n_rows;   // of a tile, at most
    int row_step; // that are computed together

    // rows [H2O_ATTN_KEYS][d] into packed K (n_k rounded up x d rounded up floats) and V, whose first key is the key-th
    void (*pack_k)(const float * rows, int64_t d, int64_t key, int64_t n_k, void * k);
    void (*pack_v)(const float * rows, int64_t d, int64_t key, int64_t n_k, void * v);

    // Both return whether all logits and outputs were finite. If not, o, m and l may be anything, and nothing was added
    // to sums.
    bool (*tile)(const h2o_attn_tile & t);

    // Reads keys[0] in place. No extra keys, sinks and sums.
    bool (*in_place)(const h2o_attn_tile & t);
};
