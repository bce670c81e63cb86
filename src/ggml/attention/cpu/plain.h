#pragma once

#include "ggml/attention/kernels/kernel.h"

#include <cmath>

struct ggml_tensor;

// For the kernels, numbers must be finite and their products must not overflow. What they cannot compute is computed here.

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

// Where keys and values are, and which of these rows they are; of the further ones of each query's own, all lists.
struct h2o_attn_plain_keys {
    const ggml_tensor * k;
    const ggml_tensor * v;
    const int32_t     * rows;
};

// The same as a kernel's tile, slowly, and of any numbers. It reads no packed keys.
//   q: the tile's, not multiplied by the scale
void h2o_attn_plain_tile(const h2o_attn_tile & t, int64_t head, const h2o_attn_plain_keys & keys, const h2o_attn_plain_keys & further,
        const float * const * q, float scale);
