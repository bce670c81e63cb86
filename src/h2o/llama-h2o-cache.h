#pragma once

#include "llama-h2o.h"

// A sequence's cache without a context, for unit tests and research: nothing is computed with it.

#ifdef __cplusplus
extern "C" {
#endif

struct llama_h2o_kv_params {
    struct llama_h2o_params h2o; // without schedule and decode
    uint32_t       kv_size;
    enum ggml_type type_k;
    enum ggml_type type_v;
};

// NULL if a parameter is invalid (the reason is logged)
LLAMA_API struct llama_h2o_kv * llama_h2o_kv_init(const struct llama_model * model, struct llama_h2o_kv_params params);
LLAMA_API void                  llama_h2o_kv_free(struct llama_h2o_kv * kv); // only what llama_h2o_kv_init made

LLAMA_API void llama_h2o_kv_clear(struct llama_h2o_kv * kv);

// score[start + i] += colsum[i]; colsum [n_rows, n], n_rows = n_head_kv, or n_head: reduced to KV heads
LLAMA_API bool llama_h2o_kv_init_chunk_scores(struct llama_h2o_kv * kv, int32_t il, uint32_t start, uint32_t n,
        const float * colsum, uint32_t n_rows);

// score[memory[i]] += colsum[i]; colsum [n_rows, M]; entries at padding (-1) are ignored
LLAMA_API bool llama_h2o_kv_accumulate_memory_scores(struct llama_h2o_kv * kv, int32_t il, const float * colsum,
        uint32_t n_rows);

// builds a layer's memory set from its memory set and the chunk, maybe partial, that ends at chunk_end; false: a gap
LLAMA_API bool llama_h2o_kv_build_memory_set(struct llama_h2o_kv * kv, int32_t il, uint32_t chunk_end);

// n more tokens are in the sequence
LLAMA_API bool llama_h2o_kv_next_chunk(struct llama_h2o_kv * kv, uint32_t n);

// write K, V of positions [p0, p1): [n_head_kv, p1 - p0, head_size]
LLAMA_API bool llama_h2o_kv_set_kv(struct llama_h2o_kv * kv, int32_t il, uint32_t p0, uint32_t p1, const float * k,
        const float * v);

// K, V of the memory set: [n_head_kv, M, head_size], padding is zero
LLAMA_API bool llama_h2o_kv_gather_k_memory(struct llama_h2o_kv * kv, int32_t il, float * dst);
LLAMA_API bool llama_h2o_kv_gather_v_memory(struct llama_h2o_kv * kv, int32_t il, float * dst);

#ifdef __cplusplus
}
#endif
