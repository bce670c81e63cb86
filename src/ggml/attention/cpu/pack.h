#pragma once

#include "ggml/attention/cpu/plain.h"

// Packs up to H2O_ATTN_KEYS of a KV head's keys and values for the kernel's tiles: of the n keys with these rows, those from the
// key-th on.
//   scratch: [H2O_ATTN_KEYS][d_k or d_v, whichever is more]
//   n_pad:   n or more, a multiple of H2O_ATTN_PAD
h2o_attn_peaks h2o_attn_pack_keys(const h2o_attn_kernel & kernel, const ggml_tensor * k, const ggml_tensor * v, int64_t h,
        const int32_t * rows, int64_t key, int64_t n, int64_t n_pad, float * scratch, float * packed_k, float * packed_v);
