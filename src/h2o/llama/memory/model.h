#pragma once

#include "h2o/config/config.h"
#include "h2o/llama/memory/side/caches.h"
#include "h2o/store/buffers.h"
#include "h2o/store/kv-layer.h"

#include "llama-kv-cache.h"

#include <memory>
#include <vector>

// adds a sequence's rows [first, first + n)
void h2o_add_slots(llama_kv_cache::slot_info & slots, llama_seq_id seq_id, uint32_t first, uint32_t n);

// What H2O needs of a model: its caches, and their layers.
struct h2o_model_caches {
    // throws std::runtime_error, with the reason, if H2O cannot work with this model
    h2o_model_caches(const llama_model & model, const llama_memory_params & params, const llama_cparams & cparams,
            const h2o_model_layers & layers);

    std::unique_ptr<llama_kv_cache> cache;

    // The dense layers', with a compact layout: row i holds position i. Else these layers are in cache.
    std::unique_ptr<llama_kv_cache> dense_cache;

    h2o_side_caches side;

    bool is_in_dense_cache(int32_t il) const { return in_dense_cache[il]; }

    // the layer whose K and V this one reads: mostly itself
    int32_t source(int32_t il) const { return sources[il]; }

    std::vector<h2o_kv_layer> layers();

    // the caches know that a sequence has the positions [first, end), or none from n on
    void fill_cells  (llama_seq_id seq_id, uint32_t first, uint32_t end);
    void remove_cells(llama_seq_id seq_id, uint32_t n);

private:
    void add_layers(const llama_kv_cache & cache, std::vector<h2o_kv_layer> & layers) const;

    const llama_model & model;
    const h2o_config    config;
    const bool          offload;

    h2o_buffers key_means;

    std::vector<bool>    in_dense_cache; // by layer
    std::vector<int32_t> sources;
};
