#pragma once

#include "h2o/store/far-rows.h"
#include "h2o/graph/intra.h"
#include "h2o/store/key-index.h"
#include "h2o/store/kv-rows.h"
#include "h2o/graph/profile.h"
#include "h2o/sequence/sequence.h"

#include "llama-kv-cache.h"

#include <map>
#include <memory>
#include <vector>

// Where a sequence lives: its K and V, a stream of a plain cache, and what H2O knows about it. Graphs and the host see it from here.
// The sequences of a context share the cache, and what is no sequence's own.
class h2o_stream {
public:
    // throws std::runtime_error, with the reason, if H2O cannot work with this model
    static void check_model(const llama_model & model);

    // the first of n_seq_max sequences
    h2o_stream(
            const llama_model & model,
                    ggml_type   type_k,
                    ggml_type   type_v,
                         bool   offload,
                     uint32_t   kv_size, // of every sequence
                     uint32_t   n_seq_max,
                     uint32_t   n_batch, // 0: stand-alone, nothing is computed with it
           const h2o_config   & config,
        const llama_memory_i::layer_filter_cb & filter);

    // another one of the same context
    h2o_stream(const h2o_stream & first, llama_seq_id id);

    h2o_stream(const h2o_stream &) = delete;

    // K and V of a layer, of all sequences: row r of this one is row id*n_rows + r
    std::vector<ggml_tensor *> storage(int32_t il) const;

    // the cells of full_cache() say that K and V of the first n positions are there
    void fill_cells(uint32_t n);

    // data: K and V become 0
    void clear(bool data);

    // Becomes a copy of src, which is of the same context. It must be empty.
    void copy_from(const h2o_stream & src);

    // undoes a call that did not come to its end
    void rollback();

    // Takes back the tokens from pos on. False if that is not possible, see h2o_sequence::rewind(); nothing has changed then.
    bool rewind(uint32_t pos);

    // views of one layer's cache, [n_embd_head, n_rows, n_head_kv]
    ggml_tensor * keys  (ggml_context * ctx, int32_t il) const;
    ggml_tensor * values(ggml_context * ctx, int32_t il) const;

    // the last n_memory rows of the memory set and the first n_chunk of the chunk after it, I32 [n_memory + n_chunk, n_head_kv]
    ggml_tensor * rows(ggml_context * ctx, int32_t il, uint32_t n_memory, uint32_t n_chunk) const;

    // the cache that has every position in the row of its number: of all layers, or of the dense ones, or none
    llama_kv_cache * full_cache() const { return dense_cache ? dense_cache.get() : sequence.layout.is_compact ? nullptr : cache.get(); }

    // the cells of the tokens from pos on are empty
    void remove_cells(uint32_t pos);

    // the cells of positions [pos, pos + n_tokens) in the cache, and in the dense layers'
    llama_kv_cache::slot_info slots      (uint32_t pos, uint32_t n_tokens) const;
    llama_kv_cache::slot_info dense_slots(uint32_t pos, uint32_t n_tokens) const;

    // where a layer's attention is computed
    ggml_backend_dev_t device(int32_t il) const;

    // whether it can be one operator there
    bool has_fused_attention(int32_t il) const;

    // whether it can be ggml's flash attention there, to rows of the cache as they lie
    bool has_flash_attention(int32_t il) const;

    // whether, besides, a layer's queries can use its index of keys there
    bool has_fused_retrieval(int32_t il) const;

    // K and V of the sequence: what is in the cache, and what is nowhere any more
    void count_bytes(uint64_t & kept, uint64_t & dropped) const;

    // K, V and the index of keys
    std::map<ggml_backend_buffer_type_t, size_t> memory_breakdown() const;

    // host access to K or V of a layer
    h2o_kv_rows k_rows(int32_t il) const;
    h2o_kv_rows v_rows(int32_t il) const;

    // float32 [n_head_kv, p1 - p0, n_embd] of the positions [p0, p1), NaN where one is gone. Throws std::runtime_error if the cold
    // store cannot be read.
    void get_positions(int32_t il, h2o_cold_store::part_t part, uint32_t p0, uint32_t p1, float * dst) const;

    const llama_model & model;

    const llama_seq_id id; // of the sequence, and of its stream in the cache

    uint32_t state_end = UINT32_MAX; // partial states are of the tokens before it

    // which layers are in the dense layers' cache
    const std::vector<bool> in_dense_cache;

    const std::shared_ptr<llama_kv_cache> cache; // of all sequences

    // Of the dense layers, if the layout is compact: they keep every position, in the row of its number. Else they are in cache.
    const std::shared_ptr<llama_kv_cache> dense_cache;

    h2o_sequence sequence;

    std::shared_ptr<h2o_intra>     intra;     // two_phase, of the call that is running; none if stand-alone
    std::shared_ptr<h2o_key_index> key_index; // of all sequences, with retrieval by it; none if stand-alone

    std::unique_ptr<h2o_far_rows> far; // with a cold store

    h2o_profile profile;

    // what the calls from now on are
    llama_h2o_call call       = LLAMA_H2O_CALL_AUTO;
    uint32_t       dense_tail = 0;

    llama_h2o_progress_callback progress      = nullptr;
    void *                      progress_data = nullptr;

private:
    void init();

    void get_stored_positions(size_t layer, h2o_cold_store::part_t part, const h2o_kv_rows & rows, uint32_t p0, uint32_t p1, uint32_t n, float * dst) const;

    void reset_stats();

    uint64_t row_bytes(const llama_kv_cache * c) const;

    // of K and V, all layers of a cache together
    uint64_t bytes_per_row       = 0;
    uint64_t bytes_per_dense_row = 0;

    bool offload;

    std::shared_ptr<h2o_cold_codec> make_cold_codec() const;

    std::shared_ptr<h2o_cold_place> cold_place; // of all sequences
    std::shared_ptr<h2o_cold_codec> cold_codec; // the same; none if nothing is encoded
};
