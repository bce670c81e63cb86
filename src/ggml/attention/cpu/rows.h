#pragma once

#include "ggml/attention/kernels/kernel.h"
#include "ggml/work.h"

// A head's rows, from the start-th of the list, or of all rows, on.
//   data: where the tensor's data is taken to be
h2o_attn_source h2o_attn_source_of(const ggml_tensor * t, const void * data, int64_t head, const int32_t * rows,
        int64_t start);

// n keys or values as kernels read ROWS: converted where they do not know the type, and Q8_0.
//   converted: [n][d, a multiple of H2O_ATTN_LANES]
h2o_attn_source h2o_attn_rows(const h2o_attn_kernel & kernel, const h2o_attn_source & x, int64_t n, float * converted);

// Some keys of a KV head.
struct h2o_attn_key_set {
    h2o_attn_source k;
    h2o_attn_source v;
    int64_t         head;
    int64_t         n;
    int64_t         start;    // number of the first one
    bool            is_extra; // of a list: all queries of its tile see them
    float         * packed_k; // or NULL
    float         * packed_v;
};

void h2o_attn_prefetch_key(const h2o_attn_key_set & keys, int64_t key);

// Packs up to H2O_ATTN_PAD keys and values for the kernel's tiles, from the key-th on.
//   scratch: [H2O_ATTN_PAD][d_k or d_v, whichever is more]
void h2o_attn_pack_keys(const h2o_attn_kernel & kernel, h2o_attn_form form, const h2o_attn_key_set & keys, int64_t key,
        float * scratch);
