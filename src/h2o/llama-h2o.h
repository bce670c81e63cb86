#pragma once

// C API of H2O chunked sparse attention.
//
// H2O is switched on by the field h2o of llama_context_params (llama.h), unless its memory set is empty. n_ubatch is at
// most the chunk size. Layers are the model's, positions are absolute in the sequence.

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

struct llama_h2o_kv; // KV cache with scores and memory sets

// how heavy hitters are ranked, see docs/algorithm.md
enum llama_h2o_scorer {
    LLAMA_H2O_SCORER_DISTANT   = 0,
    LLAMA_H2O_SCORER_SUM       = 1,
    LLAMA_H2O_SCORER_BLOCK_EMA = 2,
};

enum llama_h2o_schedule {
    LLAMA_H2O_SCHEDULE_SINGLE_PASS = 0, // every chunk once: one softmax over the memory set and the chunk
    LLAMA_H2O_SCHEDULE_TWO_PHASE   = 1, // all chunks by themselves, then again with the memory sets
};

enum llama_h2o_decode {
    LLAMA_H2O_DECODE_FULL   = 0, // generated tokens attend to everything in the cache
    LLAMA_H2O_DECODE_MEMORY = 1, // to memory set, chunk and extra keys, as a prompt's tokens; scored likewise
};

// where the keys of a memory set are once the text is longer than what the model was trained for
enum llama_h2o_positions {
    LLAMA_H2O_POSITIONS_TEXT  = 0, // at their positions in the text, as before
    LLAMA_H2O_POSITIONS_CACHE = 1, // distances are capped at the length that the model was trained for
};

// which kernels multiply by weights on the CPU; results differ in their last bits
enum llama_h2o_products {
    LLAMA_H2O_PRODUCTS_AUTO     = 0, // our own with H2O, upstream's without
    LLAMA_H2O_PRODUCTS_UPSTREAM = 1,
    LLAMA_H2O_PRODUCTS_OWN      = 2, // where we have some: with H2O or without
};

// how rows in the cold store are encoded, without loss
struct llama_h2o_lossless_params {
    bool     on;
    uint32_t n_threads; // that encode in the background
};

#define LLAMA_H2O_MAX_LAYERS 512
#define LLAMA_H2O_MAX_PATH   1024

// A memory set holds local_window + heavy_budget + sink_tokens positions, at least one; with keep_ratio fewer at first.
struct llama_h2o_params {
    uint32_t chunk_size;   // S
    uint32_t local_window; // last positions of a chunk that the next chunk attends to
    uint32_t heavy_budget; // heavy hitters that the next chunk attends to
    uint32_t sink_tokens;  // first positions of the sequence, always attended to

    // positions that a query attends to besides, found by a 4-bit copy of the keys in each layer and KV head; 0: none
    uint32_t lookup_budget;
    uint32_t tile; // queries that share extra keys

    enum llama_h2o_scorer scorer;
    uint32_t              block_tokens; // BLOCK_EMA: positions of a block, a divisor of the sizes above
    double                ema_alpha;    // the same: the share of a score that remains when a chunk is closed, in [0, 1)
    bool                  shared_heads; // a layer's KV heads keep the same positions, by the mean of their scores
    // the part of the positions before it that a memory set holds, at least sinks and local window; 0: as many as fit
    double                keep_ratio;

    enum llama_h2o_schedule schedule;
    enum llama_h2o_decode   decode;

    // bit il%64 of word il/64: layer il attends to everything, and has neither scores nor memory sets
    uint64_t dense_layers[LLAMA_H2O_MAX_LAYERS/64];

    // K and V outside of the memory set and the open chunk are dropped: the cache does not grow with the text. Needs
    // SINGLE_PASS, DECODE_MEMORY and either no lookup or a cold store
    bool evict;

    enum llama_h2o_positions positions; // CACHE: needs evict and no cold store, and keys that only RoPE has rotated

    // where evicted rows go: "" nowhere; "memory" of the host; else a folder, for a temporary file
    char cold_store[LLAMA_H2O_MAX_PATH];

    struct llama_h2o_lossless_params lossless; // with a cold store

    enum llama_h2o_products products; // counts without H2O, too
};

// an empty memory set, and the defaults of all else
LLAMA_API struct llama_h2o_params llama_h2o_default_params(void);

// whether a memory set holds anything: H2O is off otherwise
LLAMA_API bool llama_h2o_params_enabled(const struct llama_h2o_params * params);

// whether weights are multiplied by kernels of our own
LLAMA_API bool llama_h2o_params_own_products(const struct llama_h2o_params * params);

// Description of a parameter, for command lines and for code that checks or prints values.
enum llama_h2o_option_kind {
    LLAMA_H2O_OPTION_NUMBER = 0,
    LLAMA_H2O_OPTION_PART   = 1, // a number from 0 to 1
    LLAMA_H2O_OPTION_SWITCH = 2, // "off" or "on"
    LLAMA_H2O_OPTION_CHOICE = 3,
    LLAMA_H2O_OPTION_TEXT   = 4,
    LLAMA_H2O_OPTION_LAYERS = 5, // such as "0-2,11"
};

struct llama_h2o_option {
    const char *               name; // of the field of llama_h2o_params
    const char *               flag; // on command lines, after "--h2o-"
    enum llama_h2o_option_kind kind;
    size_t                     offset;
    const char *               def;     // the default, as text
    const char * const *       choices; // the names, NULL after the last; NULL: not a choice
    double                     min;
    double                     max;
    const char *               help;
};

#define LLAMA_H2O_MAX_OPTIONS 32

// the i-th, NULL after the last
LLAMA_API const struct llama_h2o_option * llama_h2o_get_option(size_t i);

// its help for a command line, with choices and default; NULL after the last
LLAMA_API const char * llama_h2o_option_usage(size_t i);

// Sets a parameter by its name or flag. Returns false, and sets nothing, if the name is unknown or the value is bad.
LLAMA_API bool llama_h2o_params_set(struct llama_h2o_params * params, const char * name, const char * value);

// The parameters in a line of text; as snprintf.
LLAMA_API int32_t llama_h2o_params_desc(const struct llama_h2o_params * params, char * buf, size_t size);

// how llama_decode takes the tokens that it is given
enum llama_h2o_call {
    LLAMA_H2O_CALL_AUTO    = 0, // one token of a sequence is generated, several are a prompt
    LLAMA_H2O_CALL_PREFILL = 1, // a prompt: sparse attention, which is scored
    LLAMA_H2O_CALL_DECODE  = 2, // generated: see the parameter decode; LLAMA_H2O_DECODE_FULL does not score
};

struct llama_h2o_info {
    uint32_t chunk_size;         // S
    uint32_t local_window;       // L
    uint32_t heavy_budget;       // H
    uint32_t sink_tokens;        // A
    uint32_t memory_size;        // M = A + L + H
    uint32_t lookup_budget;      // B
    uint32_t tile;               // T
    uint32_t kv_size;            // cells of the KV cache
    uint32_t n_positions;        // tokens that a sequence may have; INT32_MAX: any number
    uint32_t n_tokens;           // tokens in the sequence
    uint32_t chunk_index;        // chunks begun = ceil(n_tokens/S)
    uint32_t n_memory_sets;      // memory sets built so far; M_{n_memory_sets - 1} is the current one
    // generated tokens after a call's first that can all be undone, unless one begins a chunk
    uint32_t max_draft;
    uint32_t rewind_step;        // within a chunk the sequence can be cut at its multiples; 0: llama_h2o_kv_rewind_point
    bool     has_scores;         // of positions: heavy_budget > 0 or llama_h2o_kv_set_record
    uint32_t next_piece;         // where rows that moved wait for the sequence to reach them; UINT32_MAX: none do
    uint32_t exact_end;          // tokens from here on were computed with other text before them; UINT32_MAX: none
};

struct llama_h2o_stats {
    uint64_t n_decode;      // steps of generated tokens computed
    uint64_t bytes_kept;    // K and V of the sequence that are not evicted: memory sets, the open chunk, dense layers
    uint64_t bytes_cold;    // what the cold store holds
    uint64_t bytes_dropped; // K and V of the sequence that are evicted and in no cold store
};

// progress of a prefill call on a sequence: called after every ubatch, which a GPU may still compute, with the call's
// tokens so far. phase is 1 or 2, or 0 in single_pass, 4 in a dense tail; in a call with a second phase n_done stays 0
// during phase 1. Return false to cancel: llama_decode returns 2 and the context is as it was before the call.
typedef bool (*llama_h2o_progress_callback)(int32_t phase, uint32_t n_done, uint32_t n_tokens, void * user_data);

// bytes of a context's K and V (or recurrent state) and of the index of keys, with H2O on or off
LLAMA_API uint64_t llama_h2o_memory_bytes(const struct llama_context * ctx);

// The H2O cache of a context's first sequence, NULL if H2O is off.
LLAMA_API struct llama_h2o_kv * llama_get_h2o_kv(const struct llama_context * ctx);

// The same of any sequence, also NULL if seq_id is not in [0, n_seq_max). Each has a state of its own.
LLAMA_API struct llama_h2o_kv * llama_get_h2o_kv_seq(const struct llama_context * ctx, llama_seq_id seq_id);

LLAMA_API void llama_h2o_set_progress_callback(struct llama_h2o_kv * kv, llama_h2o_progress_callback callback,
        void * user_data);

// What the next call of llama_decode on this sequence is, unless it is refused; those after it are LLAMA_H2O_CALL_AUTO,
// 0 again. The last dense_tail tokens of a prefill attend to everything in the cache.
LLAMA_API void llama_h2o_set_call(struct llama_h2o_kv * kv, enum llama_h2o_call call, uint32_t dense_tail);

// Measures the parts of a prefill (t_gather_us, ...): to be cb_eval in the context's parameters, with a llama_h2o_kv **
// as its user data that points to the context's cache at the latest when the context computes. Waiting for each part
// takes some time of its own.
LLAMA_API bool llama_h2o_profile_callback(struct ggml_tensor * t, bool ask, void * kv);

// The largest position up to pos from which on the tokens can be removed (llama_memory_seq_rm). With eviction, scores or other layers' states it
// is where a prompt's call began, or the end of a chunk.
LLAMA_API uint32_t llama_h2o_kv_rewind_point(const struct llama_h2o_kv * kv, uint32_t pos);

// Keep the memory sets of every chunk and the extra keys of every tile from now on, not only of
// the last ones, and the scores of the next text, of this one if it is empty, also without heavy hitters.
LLAMA_API void llama_h2o_kv_set_record(struct llama_h2o_kv * kv, bool record);

// The sequence can be cut at the ends of all its chunks from now on, where rewind_step is 0.
LLAMA_API void llama_h2o_kv_keep_boundaries(struct llama_h2o_kv * kv);

LLAMA_API struct llama_h2o_info  llama_h2o_kv_info (const struct llama_h2o_kv * kv);
LLAMA_API struct llama_h2o_stats llama_h2o_kv_stats(const struct llama_h2o_kv * kv);

LLAMA_API uint32_t llama_h2o_kv_n_layer (const struct llama_h2o_kv * kv);
LLAMA_API int32_t  llama_h2o_kv_layer_id(const struct llama_h2o_kv * kv, uint32_t i); // i in [0, n_layer)

// 0 if the layer is not in the cache
LLAMA_API uint32_t llama_h2o_kv_n_head_kv(const struct llama_h2o_kv * kv, int32_t il);

// Whether the dense tails of the next calls keep their attention. If so, attention kept before is forgotten.
LLAMA_API void llama_h2o_kv_keep_attention(struct llama_h2o_kv * kv, bool keep);

// The weights of these tails' queries, summed up for each position: [n_head_kv, n_tokens], float32. False if none are
// kept, as by a tail that reads a cold store, or il is not a layer of the cache: nothing is written.
LLAMA_API bool llama_h2o_kv_attention(const struct llama_h2o_kv * kv, int32_t il, float * dst);

//
// Models
//

// the number of learned positions, as of GPT-2: a text cannot be longer. 0 if positions are computed
LLAMA_API uint32_t llama_h2o_n_learned_positions(const struct llama_model * model);

#ifdef __cplusplus
}
#endif
