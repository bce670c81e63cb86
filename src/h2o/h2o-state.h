#pragma once

#include "h2o-buffers.h"
#include "h2o-config.h"

#include "ggml.h"

#include <cstdint>
#include <functional>
#include <vector>

class h2o_scores;

// Scores and memory set of one layer, on the layer's device.
struct h2o_layer {
    int32_t  il;
    uint32_t n_head;
    uint32_t n_head_kv;

    ggml_tensor * scores; // F32 or BF16 [kv_size, n_head_kv]

    // I32 [M + S, n_head_kv]: the current memory set, ascending, padded at the front with -1, then the positions of the
    // chunk after it: what that chunk attends to is a view, and stays at the same place from chunk to chunk
    ggml_tensor * keys;

    uint32_t n_built = 0; // memory sets built so far

    std::vector<std::vector<int32_t>> history; // all of them, if recorded
};

// What H2O knows about one sequence: scores, memory sets and the chunk grid.
//
// A call (prefill of several tokens, or one decode step) is a transaction: begin_call, changes, then end_call or rollback.
class h2o_state {
public:
    struct layer_dims {
        int32_t  il;
        uint32_t n_head;
        uint32_t n_head_kv;

        ggml_backend_dev_t device;
    };

    // throws std::runtime_error if there is not enough memory
    h2o_state(const h2o_config & config, uint32_t kv_size, const std::vector<layer_dims> & dims);

    void clear();

    uint32_t n_tokens() const { return n_tok; }

    // chunks begun = ceil(n_tokens/S)
    uint32_t chunk_index() const { return (n_tok + config.chunk_size - 1)/config.chunk_size; }

    uint32_t n_memory_sets() const;

    // positions in each memory set that was built for a chunk that ends at chunk_end: min(M, positions seen)
    uint32_t n_memory(uint32_t chunk_end) const;

    // NULL if il has no K/V in the cache
    h2o_layer       * layer(int32_t il);
    const h2o_layer * layer(int32_t il) const;

    // current memory set [n_head_kv, M], ascending, -1 padded
    std::vector<int32_t> memory(const h2o_layer & layer) const;

    // score[start + i] += colsum[i], colsum [n_head_kv, n]
    void add_chunk_scores(h2o_layer & layer, uint32_t start, uint32_t n, const float * colsum);

    // score[memory[i]] += colsum[i], colsum [n_head_kv, M]
    void add_memory_scores(h2o_layer & layer, const float * colsum);

    // M_c of the chunk that ends at chunk_end, out of the current memory set and the chunk
    void build_memory_set(h2o_layer & layer, uint32_t chunk_end);

    // Replaces the layer's memory set for the chunk that begins at n_tokens(), where a chunk must begin; others are built.
    // memory [n_head_kv, M], ascending, -1 padded, n_memory(n_tokens()) positions for every head.
    void set_memory(h2o_layer & layer, const int32_t * memory);

    // lazy build: if position pos begins a chunk, its predecessor's memory set is built, once. Returns whether it was.
    bool begin_chunk(uint32_t pos);

    // all_scores: the call may change the scores of any position
    void begin_call(uint32_t n_tokens, bool all_scores);
    void end_call();
    void rollback();

    void add_tokens(uint32_t n) { n_tok += n; }

    size_t n_bytes_scores() const;
    size_t n_bytes_memory() const;

    const h2o_config config;
    const uint32_t   kv_size;

    std::vector<h2o_layer> layers;

    bool record = false; // keep the history of memory sets

    // Puts K of a layer's positions [p0, p1) into k, float32 [p1 - p0, n_head_kv, d], all rotated by RoPE as that of p0 is. For
    // scorers that look at keys.
    std::function<void(int32_t il, uint32_t p0, uint32_t p1, std::vector<float> & k)> read_keys;

private:
    struct snapshot_layer {
        std::vector<int32_t> keys;
        std::vector<float>   memory_scores; // of the positions in the memory set
        std::vector<float>   chunk_scores;  // from snapshot_start on [n_head_kv, n]
        uint32_t             n_built;
    };

    // first position of the chunk, perhaps partial, that ends at chunk_end
    uint32_t chunk_start_of(uint32_t chunk_end) const;

    void score_keys(h2o_layer & layer, uint32_t chunk_start, uint32_t chunk_end);

    // a head's memory set: the scorer's choice
    std::vector<int32_t> choose(uint32_t head, uint32_t chunk_end, h2o_scores & scores, const int32_t * memory) const;

    // keys of one head: the memory set and the positions of the chunk that begins at chunk_start
    void write_keys(int32_t * keys, const std::vector<int32_t> & memory, uint32_t chunk_start) const;

    h2o_buffers buffers;

    std::vector<float> key_rows; // of a chunk; kept, as new memory is slow at first

    uint32_t n_tok = 0;

    bool     in_call  = false;
    uint32_t call_end = 0;

    uint32_t snapshot_start = 0;
    std::vector<snapshot_layer> snapshot;
};
