#pragma once

#include "ggml/attention/cpu/rows.h"

// Where keys and values are, and which of these rows they are.
struct h2o_attn_plain_keys {
    const ggml_tensor * k;
    const ggml_tensor * v;
    h2o_attn_rows       rows;
};

// The same as a kernel's tile, slowly, and of any numbers. It reads no packed keys.
//   keys: the head's, and extra keys
//   q:    the tile's, not multiplied by the scale
void h2o_attn_plain_tile(const h2o_attn_tile & t, int64_t head, const h2o_attn_plain_keys (& keys)[2], const float * const * q,
        float scale);
