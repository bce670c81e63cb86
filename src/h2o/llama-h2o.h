#pragma once

// C API of H2O chunked sparse attention.
//
// H2O is switched on by the fields h2o_* of llama_context_params (llama.h): it is on when
// h2o_local_window + h2o_heavy_budget + h2o_sink_tokens > 0. The chunk size S is n_ubatch.
// Heavy hitters are chosen by h2o_scorer, a name of llama_h2o_scorer_name(). Layers are model layer indices. Positions are absolute positions in the sequence.

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

struct llama_h2o_kv; // KV cache with scores and memory sets

struct llama_h2o_info {
    uint32_t chunk_size;         // S
    uint32_t local_window;       // L
    uint32_t heavy_budget;       // H
    uint32_t sink_tokens;        // A
    uint32_t memory_size;        // M = A + L + H
    uint32_t kv_size;            // cells of the KV cache
    uint32_t n_tokens;           // tokens in the sequence
    uint32_t chunk_index;        // chunks begun = ceil(n_tokens/S)
    uint32_t n_memory_sets;      // memory sets built so far; M_{n_memory_sets - 1} is the current one
};

struct llama_h2o_stats {
    uint64_t n_single_pass;      // single_pass ubatches computed
    uint64_t n_phase1;           // phase 1 ubatches computed
    uint64_t n_phase2;           // phase 2 ubatches computed
    uint64_t n_decode;           // decode steps computed
    uint64_t n_tail;             // ubatches of dense tails computed
    uint64_t n_tokens_prefill;   // prompt tokens processed
    uint64_t n_reused;           // graphs of the above that were used again, not built anew
    int64_t  t_single_pass_us;   // time in single_pass, phase 1, phase 2, decode steps, dense tails, building memory sets
    int64_t  t_phase1_us;
    int64_t  t_phase2_us;
    int64_t  t_decode_us;
    int64_t  t_tail_us;
    int64_t  t_select_us;
    int64_t  t_gather_us;        // of the prefill's time, with llama_h2o_profile_callback: gathering K and V,
    int64_t  t_attention_us;     // attention (which gathers by itself when it is one operator),
    int64_t  t_scores_us;        // adding to the scores
    uint64_t n_select;           // memory sets built (layers x chunks)
    uint64_t bytes_kv;           // K and V tensors
    uint64_t bytes_scores;       // score tensors
    uint64_t bytes_memory;       // memory index tensors
    uint64_t bytes_intra;        // (m, l, o) of phase 1, kept for phase 2
};

// name of the i-th scorer, the default first; NULL after the last
LLAMA_API const char * llama_h2o_scorer_name(int32_t i);

// progress of a prefill call: called after every ubatch with the tokens finished so far in this call.
// phase is 1 or 2, or 0 in single_pass, 4 in a dense tail; in a call with a second phase n_done stays 0 during phase 1. Return false to
// cancel: llama_decode returns 2 and the context is as it was before the call.
typedef bool (*llama_h2o_progress_callback)(int32_t phase, uint32_t n_done, uint32_t n_tokens, void * user_data);

// bytes of a context's K and V (or recurrent state), with H2O on or off
LLAMA_API uint64_t llama_h2o_memory_bytes(const struct llama_context * ctx);

// The H2O cache of a context, NULL if H2O is off.
LLAMA_API struct llama_h2o_kv * llama_get_h2o_kv(const struct llama_context * ctx);

LLAMA_API void llama_h2o_set_progress_callback(struct llama_h2o_kv * kv, llama_h2o_progress_callback callback, void * user_data);

// The last n tokens of every prefill call from now on attend to everything in the cache; 0 at first.
LLAMA_API void llama_h2o_set_dense_tail(struct llama_h2o_kv * kv, uint32_t n);

// Measures the parts of a prefill (t_gather_us, ...): to be cb_eval in the context's parameters, with a llama_h2o_kv ** as
// its user data that points to the context's cache at the latest when the context computes. Waiting for each part takes
// some time of its own.
LLAMA_API bool llama_h2o_profile_callback(struct ggml_tensor * t, bool ask, void * kv);

// keep the memory sets of every chunk (llama_h2o_kv_history)
LLAMA_API void llama_h2o_kv_set_record(struct llama_h2o_kv * kv, bool record);

LLAMA_API struct llama_h2o_info  llama_h2o_kv_info (const struct llama_h2o_kv * kv);
LLAMA_API struct llama_h2o_stats llama_h2o_kv_stats(const struct llama_h2o_kv * kv);

LLAMA_API uint32_t llama_h2o_kv_n_layer (const struct llama_h2o_kv * kv);
LLAMA_API int32_t  llama_h2o_kv_layer_id(const struct llama_h2o_kv * kv, uint32_t i); // i in [0, n_layer)

// dimensions of a layer, 0 if the layer is not in the cache
LLAMA_API uint32_t llama_h2o_kv_n_head     (const struct llama_h2o_kv * kv, int32_t il); // query heads
LLAMA_API uint32_t llama_h2o_kv_n_head_kv  (const struct llama_h2o_kv * kv, int32_t il);
LLAMA_API uint32_t llama_h2o_kv_head_size_k(const struct llama_h2o_kv * kv, int32_t il);
LLAMA_API uint32_t llama_h2o_kv_head_size_v(const struct llama_h2o_kv * kv, int32_t il);

// All functions below return false, and write nothing, if il is not a layer of the cache or a range is outside it.

// scores [n_head_kv, n_tokens], float32
LLAMA_API bool llama_h2o_kv_scores(const struct llama_h2o_kv * kv, int32_t il, float * dst);

// current memory set [n_head_kv, M], ascending positions, -1 padded
LLAMA_API bool llama_h2o_kv_memory_indices(const struct llama_h2o_kv * kv, int32_t il, int32_t * dst);

// Replaces the memory set for the chunk after the last one, which must be complete: [n_head_kv, M], for every head
// min(M, n_tokens) positions, ascending, in [0, n_tokens), -1 padded. Writes nothing and returns false if they are not.
LLAMA_API bool llama_h2o_kv_set_memory_indices(struct llama_h2o_kv * kv, int32_t il, const int32_t * src);

// memory set M_c [n_head_kv, M] of an earlier chunk; needs llama_h2o_kv_set_record before
LLAMA_API bool llama_h2o_kv_history(const struct llama_h2o_kv * kv, uint32_t chunk, int32_t il, int32_t * dst);

// K or V of positions [p0, p1), dequantised: [n_head_kv, p1 - p0, head_size]
LLAMA_API bool llama_h2o_kv_get_k(const struct llama_h2o_kv * kv, int32_t il, uint32_t p0, uint32_t p1, float * dst);
LLAMA_API bool llama_h2o_kv_get_v(const struct llama_h2o_kv * kv, int32_t il, uint32_t p0, uint32_t p1, float * dst);

//
// Stand-alone cache, for unit tests and research: the same object without a context.
//

struct llama_h2o_kv_params {
    uint32_t       kv_size;
    uint32_t       chunk_size;
    uint32_t       local_window;
    uint32_t       heavy_budget;
    uint32_t       sink_tokens;
    const char *   scorer;       // NULL: the default
    uint32_t       pooling;
    enum ggml_type score_type;   // GGML_TYPE_F32 or GGML_TYPE_BF16
    enum ggml_type type_k;
    enum ggml_type type_v;
    bool           v_trans;      // V is stored transposed, as without flash attention
};

// NULL if a parameter is invalid (the reason is logged)
LLAMA_API struct llama_h2o_kv * llama_h2o_kv_init(const struct llama_model * model, struct llama_h2o_kv_params params);
LLAMA_API void                  llama_h2o_kv_free(struct llama_h2o_kv * kv); // only what llama_h2o_kv_init made

LLAMA_API void llama_h2o_kv_clear(struct llama_h2o_kv * kv);

// score[start + i] += colsum[i]; colsum [n_rows, n], n_rows = n_head_kv, or n_head: reduced to KV heads
LLAMA_API bool llama_h2o_kv_init_chunk_scores(struct llama_h2o_kv * kv, int32_t il, uint32_t start, uint32_t n, const float * colsum, uint32_t n_rows);

// score[memory[i]] += colsum[i]; colsum [n_rows, M]; entries at padding (-1) are ignored
LLAMA_API bool llama_h2o_kv_accumulate_memory_scores(struct llama_h2o_kv * kv, int32_t il, const float * colsum, uint32_t n_rows);

// build this layer's memory set out of (its memory set + the chunk that ends at chunk_end). chunk_end may be shorter than the grid (partial chunk)
LLAMA_API bool llama_h2o_kv_build_memory_set(struct llama_h2o_kv * kv, int32_t il, uint32_t chunk_end);

// n more tokens are in the sequence
LLAMA_API bool llama_h2o_kv_next_chunk(struct llama_h2o_kv * kv, uint32_t n);

// write K, V of positions [p0, p1): [n_head_kv, p1 - p0, head_size]
LLAMA_API bool llama_h2o_kv_set_kv(struct llama_h2o_kv * kv, int32_t il, uint32_t p0, uint32_t p1, const float * k, const float * v);

// K, V of the memory set through the gather that inference uses: [n_head_kv, M, head_size], padding is zero
LLAMA_API bool llama_h2o_kv_gather_k_memory(struct llama_h2o_kv * kv, int32_t il, float * dst);
LLAMA_API bool llama_h2o_kv_gather_v_memory(struct llama_h2o_kv * kv, int32_t il, float * dst);

#ifdef __cplusplus
}
#endif
