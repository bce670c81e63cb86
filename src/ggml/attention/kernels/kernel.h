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

// How a kernel that reads K and V where they lie finds their numbers.
enum h2o_attn_type {
    H2O_ATTN_F32,
    H2O_ATTN_F16,
    H2O_ATTN_BF16,
    H2O_ATTN_Q8_0,
};

// the multiple that head sizes must be of
constexpr int64_t H2O_ATTN_LANES = 16;

// Keys or values that are read where they lie.
struct h2o_attn_source {
    const void    * data;
    int64_t         stride; // bytes from row to row
    int64_t         size;   // bytes of a row
    const int32_t * rows;   // of each key
    h2o_attn_type   type;
};

// Some rows (query, head) of one KV head. All numbers are finite and their products do not overflow, but for those of queries' own
// keys, and every row sees one of the first keys.
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

    // Or further keys of each query's own. Their logits begin at column n_k too; a row sees the first visible2 of its query's, in any
    // order, and hidden2 is 0.
    int64_t         n_query;    // of each query, with places for more than there are; 0: there are none
    int             group;      // rows of a query
    int             query_head; // the first row's place among its query's
    h2o_attn_source query_k;    // rows: [queries][n_query], negative where there is no key
    h2o_attn_source query_v;
    float         * query_o;    // scratch, as o

    // keys and values that are packed after this tile: they are asked for in time
    h2o_attn_source next_k;
    h2o_attn_source next_v;
    int64_t         n_next;

    float * logits; // scratch, [H2O_ATTN_MAX_ROWS][ld]
    int64_t ld;
    float * split;  // scratch, [H2O_ATTN_MAX_ROWS][d_k rounded up]

    float * o;    // [H2O_ATTN_MAX_ROWS][d_v rounded up], the first n_rows are set
    float * m;    // [n_rows]
    float * l;    // [n_rows]
    float * sums; // [n_k], added to, or NULL
};

// Rows (query, head) of one KV head and a block of keys.
struct h2o_attn_in_place {
    int     n_rows;
    int64_t d_k;
    int64_t d_v;
    int64_t n_k;

    const float   * q;       // [n_rows][d_k], multiplied by the scale
    const int64_t * hidden;  // [n_rows] the first ones, which each row does not see; NULL: it sees them
    const int64_t * visible; // [n_rows] the first ones, with those that each row sees
    h2o_attn_source k;
    h2o_attn_source v;

    // keys that are read after this block: they are asked for in time
    h2o_attn_source next;
    int64_t         n_next;

    float * logits; // scratch, [n_rows][ld]
    int64_t ld;     // n_k rounded up, or more

    float * o;    // [n_rows][ld_o]
    int64_t ld_o;
    bool    add;  // to what is there
    float * m;    // [n_rows]
    float * l;    // [n_rows]
};

struct h2o_attn_kernel {
    const char * name;
    int          n_rows;        // of a tile
    bool         has_more_keys; // whether a tile may have further keys

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
