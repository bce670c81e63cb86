#pragma once

#include "ggml/attention/cpu/args.h"
#include "ggml/attention/kernels/kernel.h"

#include <cmath>

// A row of a head's keys or values, as float32.
void h2o_attn_read_row(const ggml_tensor * t, int64_t row, int64_t head, float * dst);

// Asks for a row that is read soon: rows by index are more than the CPU foresees.
void h2o_attn_prefetch_row(const ggml_tensor * t, int64_t row, int64_t head);

// Where a head's rows lie. False if the kernels have no name for their type, which is then not set.
//   iota: 0, 1, ...: numbers of rows that follow one another
bool h2o_attn_find_source(const ggml_tensor * t, int64_t head, h2o_attn_rows rows, const int32_t * iota, h2o_attn_source & res);

// The same for n rows, converted where they are of a type that the kernels do not know.
//   converted: [n][d]
h2o_attn_source h2o_attn_get_source(const ggml_tensor * t, int64_t head, h2o_attn_rows rows, int64_t n, const int32_t * iota,
        float * converted);

// For the kernels, numbers must be finite and their products must not overflow. What they cannot compute is computed by
// h2o_attn_plain_tile.

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

// Packs up to H2O_ATTN_KEYS of a KV head's keys and values for the kernel's tiles: of the n keys with these rows, those from the
// key-th on.
//   scratch: [H2O_ATTN_KEYS][d_k or d_v, whichever is more]
//   n_pad:   n or more, a multiple of H2O_ATTN_PAD
h2o_attn_peaks h2o_attn_pack_keys(const h2o_attn_kernel & kernel, const ggml_tensor * k, const ggml_tensor * v, int64_t h,
        h2o_attn_rows rows, int64_t key, int64_t n, int64_t n_pad, float * scratch, float * packed_k, float * packed_v);
