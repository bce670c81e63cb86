#pragma once

#include "h2o-plan.h"
#include "h2o-stream.h"

#include "llama-kv-cache.h"

#include <map>
#include <vector>

// The memory module of an H2O context: a stream for its sequence, and calls that walk a plan over it.
class llama_memory_h2o : public llama_memory_i {
public:
    llama_memory_h2o(
            const llama_model & model,
                    ggml_type   type_k,
                    ggml_type   type_v,
                         bool   fused_attention,
                         bool   offload,
                     uint32_t   kv_size,
                     uint32_t   n_batch,
           const h2o_config   & config,
        const layer_filter_cb & filter);

    //
    // llama_memory_i
    //

    llama_memory_context_ptr init_batch(llama_batch_allocr & balloc, uint32_t n_ubatch, bool embd_all) override;
    llama_memory_context_ptr init_full() override;
    llama_memory_context_ptr init_update(llama_context * lctx, bool optimize) override;

    bool get_can_shift() const override { return false; }

    void clear(bool data) override;

    // The end of the sequence can be removed from a position on that h2o_sequence::rewind() accepts, else the whole of it.
    // Nothing can be copied or moved.
    bool seq_rm  (llama_seq_id seq_id,                              llama_pos p0, llama_pos p1) override;
    void seq_cp  (llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1) override;
    void seq_keep(llama_seq_id seq_id)                                                          override;
    void seq_add (llama_seq_id seq_id,                              llama_pos p0, llama_pos p1, llama_pos shift) override;
    void seq_div (llama_seq_id seq_id,                              llama_pos p0, llama_pos p1, int d) override;

    // What a caller reads from this is from where on it may remove: every position after it. -1 if the sequence is empty.
    llama_pos seq_pos_min(llama_seq_id seq_id) const override;
    llama_pos seq_pos_max(llama_seq_id seq_id) const override;

    std::map<ggml_backend_buffer_type_t, size_t> memory_breakdown() const override;

    // With LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY what seq_rm cannot bring back: for a context that still has the K and V.
    void state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const override;
    void state_read (llama_io_read_i  & io, llama_seq_id seq_id, llama_state_seq_flags flags) override;

    h2o_stream stream;

    // attention is one operator, where the device has it
    const bool fused_attention;

    const uint32_t n_batch;

private:
    // throws std::runtime_error if the queries of a layer could not use the index of keys
    void check_retrieval() const;
};

// Walks the steps of one call.
class llama_memory_h2o_context : public llama_kv_cache_context {
public:
    // simulates a full cache, to reserve the compute buffers
    explicit llama_memory_h2o_context(llama_memory_h2o * memory);

    llama_memory_h2o_context(
            llama_memory_h2o * memory,
            llama_kv_cache::slot_info_vec_t sinfos,
            std::vector<llama_ubatch> ubatches,
            std::vector<h2o_step> steps);

    // a call that did not come to its end is undone
    ~llama_memory_h2o_context() override;

    bool next()  override;
    bool apply() override;
    bool finish(ggml_backend_sched_t sched) override;

    // the largest steps, whose compute buffers are reserved
    std::vector<h2o_step> largest_steps() const;

    // builds memory sets by the threads of this CPU backend from now on
    void use_threads(ggml_backend_t cpu) const { stream->sequence.cpu = cpu; }

    // the step that graphs are reserved for from now on; else a whole chunk with a full memory set, and one decoded token
    void set_reserve_step(const h2o_step & step) { reserve_step = step; }

    // the step that a graph for n_tokens computes
    h2o_step get_step(uint32_t n_tokens) const;

    llama_memory_h2o * const memory;
    h2o_stream       * const stream;

private:
    // the tokens of the step
    void read_text(const h2o_step & step);

    std::vector<h2o_step> steps; // empty: reserve
    size_t   i_step        = 0;
    uint32_t n_tokens_call = 0;
    bool     begun         = false;
    int64_t  t_start_us    = 0;

    h2o_step reserve_step = {};
};
