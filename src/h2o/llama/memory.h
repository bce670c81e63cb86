#pragma once

#include "h2o/store/stream.h"

#include "llama-kv-cache.h"

#include <map>
#include <memory>
#include <vector>

// The memory module of an H2O context: a stream for each of its sequences, and calls that walk plans over them.
class llama_memory_h2o : public llama_memory_i {
public:
    llama_memory_h2o(
            const llama_model & model,
                    ggml_type   type_k,
                    ggml_type   type_v,
                         bool   flash_attention,
                         bool   offload,
                     uint32_t   kv_size, // of every sequence
                     uint32_t   n_seq_max,
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

    // The end of a sequence can be removed from a position on that h2o_sequence::rewind() accepts, else the whole of it. A whole
    // sequence can be copied to an empty one. Nothing can be moved. A sequence that does not exist is empty.
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

    bool has_stream(llama_seq_id seq_id) const { return seq_id >= 0 && (size_t) seq_id < streams.size(); }

    // throws std::runtime_error if there is none
    h2o_stream & stream(llama_seq_id seq_id) const;

    std::vector<std::unique_ptr<h2o_stream>> streams; // of every sequence, by its number

    // attention is one operator, where the device has it: H2O's, or else, where rows lie together and no column sums are wanted, ggml's
    const bool fused_attention;
    const bool flash_attention;

    const uint32_t n_batch;

private:
    // throws std::runtime_error if the queries of a layer could not use the index of keys
    void check_retrieval() const;

    bool remove(h2o_stream & stream, llama_pos p0, llama_pos p1);
};
