#pragma once

#include "ggml/attention/cpu/rows.h"

// The same as a kernel's tile, slowly, and of any numbers. It reads no packed keys.
//   keys: the head's, and extra keys
//   q:    the tile's, not multiplied by the scale
void h2o_attn_plain_tile(const h2o_attn_tile & t, const h2o_attn_key_set & keys, const h2o_attn_key_set & extra,
        const float * const * q, float scale);
