#pragma once

#include "h2o-intra.h"
#include "h2o-profile.h"
#include "h2o-rope.h"
#include "h2o-state.h"
#include "llama-h2o.h"

#include "llama-kv-cache.h"

#include <map>
#include <memory>
#include <vector>

// One ubatch of a call, see docs/algorithm.md
struct h2o_step {
    enum phase_t {
        SINGLE_PASS = 0, // (a piece of) one chunk attends to the memory set and to itself
        INTRA       = 1, // two_phase, phase 1: the whole call, every chunk attends to itself
        INTER       = 2, // two_phase, phase 2: (a piece of) one chunk attends to the memory set, fused with phase 1
        DECODE      = 3, // one token, dense attention over the whole cache
        TAIL        = 4, // (a piece of) one chunk attends to everything before it and to itself
    };

    phase_t  phase;
    uint32_t pos;        // position of its first token
    uint32_t n_tokens;
    uint32_t offset;     // of its first token in the call
    uint32_t n_memory;   // SINGLE_PASS, INTER: positions in the memory set, 0 if there is none yet
    bool     has_phase2; // INTRA: a phase 2 follows, which computes the outputs

    bool operator==(const h2o_step & other) const;
};

// A KV cache for one sequence, with H2O scores and memory sets. Cell i always holds position i.
class llama_kv_cache_h2o : public llama_kv_cache {
public:
    // throws std::runtime_error, with the reason, if H2O cannot work with this model
    static void check_model(const llama_model & model);

    llama_kv_cache_h2o(
            const llama_model & model,
                    ggml_type   type_k,
                    ggml_type   type_v,
                         bool   v_trans,
                         bool   offload,
                     uint32_t   kv_size,
                     uint32_t   n_batch, // 0: stand-alone, nothing is computed with it
           const h2o_config   & config,
        const layer_filter_cb & filter);

    //
    // llama_memory_i
    //

    llama_memory_context_ptr init_batch(llama_batch_allocr & balloc, uint32_t n_ubatch, bool embd_all) override;
    llama_memory_context_ptr init_full() override;

    bool get_can_shift() const override { return false; }

    void clear(bool data) override;

    // scores and memory sets of a part cannot be undone: only the whole sequence can be removed, nothing can be copied or moved
    bool seq_rm  (llama_seq_id seq_id,                              llama_pos p0, llama_pos p1) override;
    void seq_cp  (llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1) override;
    void seq_keep(llama_seq_id seq_id)                                                          override;
    void seq_add (llama_seq_id seq_id,                              llama_pos p0, llama_pos p1, llama_pos shift) override;
    void seq_div (llama_seq_id seq_id,                              llama_pos p0, llama_pos p1, int d) override;

    [[noreturn]] void state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const override;
    [[noreturn]] void state_read (llama_io_read_i  & io, llama_seq_id seq_id, llama_state_seq_flags flags) override;

    //
    // a call is a transaction (see h2o_state)
    //

    void rollback();

    // adds the time since the last part's end
    void profile_part(h2o_part part);

    //
    // graph_build API
    //

    // views of one layer's cache, [n_embd_head, n_kv, n_head_kv]; v_trans: values() is [n_kv, n_embd_head, n_head_kv]
    ggml_tensor * keys  (ggml_context * ctx, int32_t il) const;
    ggml_tensor * values(ggml_context * ctx, int32_t il) const;

    bool v_is_transposed() const { return v_trans; }

    // the last n_memory positions of the memory set and the first n_chunk of the chunk after it, I32 [n_memory + n_chunk, n_head_kv]
    ggml_tensor * key_rows(ggml_context * ctx, int32_t il, uint32_t n_memory, uint32_t n_chunk) const;

    // k is the node of the layer's graph whose rows go to the cache
    void set_rope(int32_t il, const ggml_tensor * k);

    const llama_model & get_model() const { return model; }

    // where a layer's attention is computed
    ggml_backend_dev_t device(int32_t il) const;

    h2o_state state;
    std::unique_ptr<h2o_intra> intra; // two_phase; none if stand-alone

    // attention is one operator, where the device has it
    const bool fused_attention;

    uint32_t dense_tail = 0; // last tokens of every prefill call that attend to everything

    llama_h2o_stats stats = {};

    llama_h2o_progress_callback progress      = nullptr;
    void *                      progress_data = nullptr;

private:
    slot_info slots(uint32_t pos, uint32_t n_tokens) const;

    void reset_stats();

    void read_aligned_keys(int32_t il, uint32_t p0, uint32_t p1, std::vector<float> & k) const;

    const llama_model & model;
    const bool v_trans;
    const bool offload;

    std::map<int32_t, std::shared_ptr<h2o_rope>> ropes; // of the layers, equal ones shared

    int64_t t_part_us = 0; // end of the last part
};

// Goes through the steps of one call.
class llama_kv_cache_h2o_context : public llama_kv_cache_context {
public:
    // simulate a full cache, to reserve the compute buffers
    explicit llama_kv_cache_h2o_context(llama_kv_cache_h2o * kv);

    llama_kv_cache_h2o_context(
            llama_kv_cache_h2o * kv,
            llama_kv_cache::slot_info_vec_t sinfos,
            std::vector<llama_ubatch> ubatches,
            std::vector<h2o_step> steps);

    // a call that did not come to its end is undone
    ~llama_kv_cache_h2o_context() override;

    bool next()  override;
    bool apply() override;
    bool has_outputs() const override;
    bool finish(ggml_backend_sched_t sched) override;

    llama_kv_cache_h2o * get_kv() const { return kv; }

    // the step that a graph for n_tokens computes
    h2o_step get_step(uint32_t n_tokens) const;

private:
    llama_kv_cache_h2o * kv;

    std::vector<h2o_step> steps; // empty: reserve
    size_t   i_step        = 0;
    uint32_t n_tokens_call = 0;
    bool     begun         = false;
    int64_t  t_start_us    = 0;
};
