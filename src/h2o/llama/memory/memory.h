#pragma once

#include "h2o/graph/intra.h"
#include "h2o/graph/profile.h"
#include "h2o/graph/step-graph.h"
#include "h2o/llama/memory/model.h"
#include "h2o/sequence/sequence.h"
#include "h2o/store/key-index.h"
#include "h2o/store/kv-store.h"

#include "llama-h2o.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

class h2o_memory;
class h2o_step_context;

// What a sequence has computed since it was cleared.
struct h2o_counts {
    struct count {
        uint64_t n    = 0;
        int64_t  t_us = 0;
    };

    count passes[h2o_step::N_PHASES]; // steps computed, by phase
    count selections;                 // memory sets built (layers x chunks)

    uint64_t n_reused         = 0; // of the passes: their graph was used again, not built anew
    uint64_t n_tokens_prefill = 0;
};

// A sequence of a context, as the C interface names it.
struct llama_h2o_kv {
    llama_h2o_kv(h2o_memory & memory, llama_seq_id id);

    h2o_memory &       memory;
    const llama_seq_id id; // of the sequence, and of its stream in the caches

    h2o_sequence sequence;

    const h2o_sequence_state & state() const { return sequence.state(); }
    h2o_past                   past () const { return sequence.past(); }

    // what the next llama_decode is; its last dense_tail tokens attend to everything
    llama_h2o_call next_call  = LLAMA_H2O_CALL_AUTO;
    uint32_t       dense_tail = 0;

    llama_h2o_progress_callback progress      = nullptr;
    void *                      progress_data = nullptr;

    h2o_counts  counts;
    h2o_profile profile;
};

// The memory module of an H2O context. Its sequences share K and V, the index of keys and phase 1's attention state.
class h2o_memory : public llama_memory_i {
public:
    // stand-alone without a batch size: nothing is computed with it
    h2o_memory(const llama_model & model, const llama_memory_params & params, const llama_cparams & cparams,
            const h2o_model_layers & layers);

    // NULL if it is not H2O's
    static const h2o_memory * of(const llama_memory_i * memory) { return dynamic_cast<const h2o_memory *>(memory); }

    //
    // llama_memory_i
    //

    llama_memory_context_ptr init_batch(llama_batch_allocr & balloc, uint32_t n_ubatch, bool embd_all) override;
    llama_memory_context_ptr init_full() override;
    llama_memory_context_ptr init_update(llama_context * lctx, bool optimize) override;

    bool get_can_shift() const override { return move_refusal(*seqs.front()).empty(); }

    void clear(bool data) override;

    // The end of a sequence can be removed where can_rewind() allows, or all of it; other parts where rows can move. What
    // is behind a gap is unseen until the gap is closed, by tokens or by seq_add: seq_pos_max is before it. A whole
    // sequence can be copied to an empty one. Unknown sequences are empty.
    bool seq_rm  (llama_seq_id seq_id,                              llama_pos p0, llama_pos p1) override;
    void seq_cp  (llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1) override;
    void seq_keep(llama_seq_id seq_id)                                                          override;
    void seq_add (llama_seq_id seq_id,                              llama_pos p0, llama_pos p1,
            llama_pos shift) override;
    void seq_div (llama_seq_id seq_id,                              llama_pos p0, llama_pos p1, int d) override;

    // Upstream's callers take seq_pos_min + 1 for the first position that may be removed. -1 if the sequence is empty.
    llama_pos seq_pos_min(llama_seq_id seq_id) const override;
    llama_pos seq_pos_max(llama_seq_id seq_id) const override;

    std::map<ggml_backend_buffer_type_t, size_t> memory_breakdown() const override;

    // A partial state is all of it: what seq_rm cannot bring back are rows, too.
    void state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const override;
    void state_read (llama_io_read_i  & io, llama_seq_id seq_id, llama_state_seq_flags flags) override;

    //
    // sequences
    //

    // NULL if there is none
    llama_h2o_kv * sequence(llama_seq_id seq_id) const;

    const std::vector<std::unique_ptr<llama_h2o_kv>> & sequences() const { return seqs; }

    void clear(llama_h2o_kv & kv);

    // The sequence's first n_kept tokens become the beginning of another text, which has pieces of this one behind them:
    // their rows move there. They are unseen until the sequence reaches them, see h2o_sequence. Throws std::exception.
    void arrange(llama_h2o_kv & kv, uint32_t n_kept, const std::vector<h2o_piece> & pieces);

    // why rows cannot move, "" if they can
    std::string move_refusal(const llama_h2o_kv & kv) const;

    // Where both the sequence and the side caches (other layers' windows and recurrent states) can be cut.
    bool     can_rewind  (const llama_h2o_kv & kv, uint32_t pos) const;
    uint32_t rewind_point(const llama_h2o_kv & kv, uint32_t pos) const; // the largest such position up to pos
    uint32_t rewind_limit(const llama_h2o_kv & kv) const;
    uint32_t rewind_step (const llama_h2o_kv & kv) const; // 0 with eviction, side caches or scores

    // Restores host state and rows, but not the side caches. rows: copies of moved rows, or NULL. moves_keys: keys are rotated
    // again, else `rows` holds rotated ones.
    void go_back(llama_h2o_kv & kv, const h2o_checkpoint & checkpoint, const h2o_row_copies * rows, bool moves_keys);

    // Between two calls: throws std::runtime_error if its parts do not agree about a sequence. For tests.
    void check() const;

    const h2o_config    config;
    const llama_model & model;
    const uint32_t      n_batch;
    const uint32_t      n_ubatch; // at most a chunk

    h2o_model_caches caches;
    h2o_kv_store     store;

    std::unique_ptr<h2o_key_index> index; // with lookups
    std::unique_ptr<h2o_intra>     intra; // two_phase

    h2o_graph_env env;

    std::vector<ggml_backend_t> backends; // of llama_context, the CPU's last

    h2o_step_context * current = nullptr; // of the batch that is computed

    bool finds_ropes = false; // the next graph is built to see how keys are rotated
    bool has_ropes   = false; // it is known, and they can be rotated anew

private:
    // returns their memory until they are written
    void release_rows(llama_seq_id id) const;

    // throw std::exception
    void remove(llama_h2o_kv & kv, int64_t p0, int64_t p1);
    void cut   (llama_h2o_kv & kv, uint32_t pos);

    // this one, or all: -1. Throws std::runtime_error if there is none
    std::vector<llama_h2o_kv *> sequences_of(llama_seq_id seq_id) const;

    std::vector<std::unique_ptr<llama_h2o_kv>> seqs;
};
