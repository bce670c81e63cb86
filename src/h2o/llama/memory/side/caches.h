#pragma once

#include "llama-kv-cache.h"
#include "llama-memory-recurrent.h"

#include <cstdint>
#include <memory>
#include <vector>

struct llama_cparams;

// Which layers have what, by index. An empty recurrent: none has.
struct h2o_model_layers {
    llama_memory_i::layer_filter_cb attention;
    llama_memory_i::layer_filter_cb recurrent;
    llama_memory_i::layer_reuse_cb  reuse; // the layer whose K and V this one reads, or -1; empty: each has its own

    bool has_attention(int32_t il) const { return !attention || attention(il); }
};

// Upstream's caches of layers with a sliding window and of recurrent layers. Both are bounded already.
//
// Contents that a call overwrites are saved as bytes: rows of the window, and the recurrent state.
class h2o_side_caches {
public:
    // none if nothing is computed with them, without a batch size
    h2o_side_caches(const llama_model & model, const llama_memory_params & params, const llama_cparams & cparams,
            const h2o_model_layers & layers);

    bool empty() const { return !window && !recurrent; }

    // Throws std::runtime_error if a device cannot be read.
    std::vector<uint8_t> save(llama_seq_id seq_id) const;
    void                 load(llama_seq_id seq_id, const std::vector<uint8_t> & saved);

    size_t n_bytes(llama_seq_id seq_id) const; // of save()

    // Before a call: returns a copy of the windows, or NULL if none is needed. The recurrent state is not copied: a
    // spare sequence shares its cell until the call writes it. Drop the spare after the call.
    std::shared_ptr<const std::vector<uint8_t>> keep(llama_seq_id seq_id, bool many_steps);
    void go_back   (llama_seq_id seq_id, uint32_t n_tokens, const std::vector<uint8_t> * windows);

    // Before a step of several sequences, after keep() of each: upstream's cells for them lie together. Else the step
    // would also move states of other sequences, and lose them if its graph stops in between.
    void make_room(const std::vector<llama_seq_id> & seq_ids);

    void drop_spare(llama_seq_id seq_id);

    // without anything saved
    bool can_rewind(llama_seq_id seq_id, uint32_t pos) const;
    void rewind    (llama_seq_id seq_id, uint32_t pos);

    void clear(llama_seq_id seq_id);
    void copy (llama_seq_id from, llama_seq_id to);

    std::vector<llama_memory_i *> all() const;

    std::unique_ptr<llama_kv_cache>         window;    // or null
    std::unique_ptr<llama_memory_recurrent> recurrent; // or null: a cell and a spare one of each sequence

private:
    llama_seq_id spare(llama_seq_id seq_id) const { return n_seq_max + seq_id; }

    // whether the next n recurrent states have free cells next to each other: they are taken next
    bool find_room(uint32_t n);

    // moves a recurrent state to a free cell
    void move_cell(uint32_t from, uint32_t to);

    void load_window(llama_seq_id seq_id, const std::vector<uint8_t> & saved);

    const uint32_t n_seq_max;

    uint32_t       n_swa = 0;
    llama_swa_type swa_type = LLAMA_SWA_TYPE_NONE;
};
