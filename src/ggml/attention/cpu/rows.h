#pragma once

#include "ggml/attention/kernels/kernel.h"
#include "ggml/work.h"

#include <cmath>

// Rows of the cache, by key.
struct h2o_attn_rows {
    const int32_t * list; // NULL: consecutive rows
    int64_t         start = 0;

    int32_t operator[](int64_t key) const { return list ? list[key] : (int32_t) (start + key); }

    h2o_attn_rows from(int64_t key) const { return { list ? list + key : nullptr, start + key }; }
};

// A row of a head's keys or values, as float32.
void h2o_attn_read_row(const ggml_tensor * t, int64_t row, int64_t head, float * dst);

// Where a head's rows lie. False if the kernels have no name for their type, which is then not set.
//   iota: 0, 1, ...: numbers of rows that follow one another
bool h2o_attn_find_source(const ggml_tensor * t, int64_t head, h2o_attn_rows rows, const int32_t * iota,
        h2o_attn_source & res);

// The same for n rows, converted where they are of a type that the kernels do not know.
//   converted: [n][d]
h2o_attn_source h2o_attn_get_source(const ggml_tensor * t, int64_t head, h2o_attn_rows rows, int64_t n,
        const int32_t * iota,
        float * converted);

// For the kernels, numbers must be finite and their products must not overflow. h2o_attn_plain_tile computes the
// others.

// largest |x|, NaN if there is one
float h2o_attn_peak(const float * x, int64_t n);

// largest |x| of some keys and values; NaN if there is one
struct h2o_attn_peaks {
    float k;
    float v;

    void add(const h2o_attn_peaks & other) {
        k = other.k > k || std::isnan(other.k) ? other.k : k;
        v = other.v > v || std::isnan(other.v) ? other.v : v;
    }
};

// whether a kernel may compute a tile with such numbers
bool h2o_attn_is_tame(float max_q, const h2o_attn_peaks & max, int64_t d_k);

// Some keys of a KV head.
struct h2o_attn_key_set {
    const ggml_tensor * k; // where their rows are
    const ggml_tensor * v;
    int64_t             head;
    h2o_attn_rows       rows;
    int64_t             n;
    int64_t             start;    // number of the first one
    const int32_t     * first;    // extra keys: the first query that sees each; NULL: they are among the head's
    float             * packed_k; // or NULL
    float             * packed_v;
    h2o_attn_peaks      peaks; // of packed keys
};

void h2o_attn_prefetch_key(const h2o_attn_key_set & keys, int64_t key);

// Packs up to H2O_ATTN_KEYS keys and values for the kernel's tiles, from the key-th on.
//   scratch: [H2O_ATTN_KEYS][d_k or d_v, whichever is more]
h2o_attn_peaks h2o_attn_pack_keys(const h2o_attn_kernel & kernel, const h2o_attn_key_set & keys, int64_t key,
        float * scratch);
