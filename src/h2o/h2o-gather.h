#pragma once

#include "llama-kv-cache-h2o.h"

// Gathers K and V of a layer's memory set, every KV head its own positions, dequantised to F32.

struct h2o_gather_indices {
    ggml_tensor * k; // I32 [n_memory, n_head_kv]
    ggml_tensor * v; // the same tensor, or for a transposed V, whose rows are single elements, I32 [n_memory, n_embd_head_v, n_head_kv]
};

h2o_gather_indices h2o_gather_build_indices(ggml_context * ctx, const llama_kv_cache_h2o & kv, int32_t il, uint32_t n_memory);

// fill the indices with the layer's current memory set
void h2o_gather_set_indices(const h2o_gather_indices & indices, const llama_kv_cache_h2o & kv, int32_t il);

ggml_tensor * h2o_gather_build_k(ggml_context * ctx, const llama_kv_cache_h2o & kv, const h2o_gather_indices & indices, int32_t il); // [n_embd_head_k, n_memory, n_head_kv]
ggml_tensor * h2o_gather_build_v(ggml_context * ctx, const llama_kv_cache_h2o & kv, const h2o_gather_indices & indices, int32_t il); // [n_memory, n_embd_head_v, n_head_kv]
