#pragma once

#include "h2o/graph/plan.h"
#include "h2o/llama/memory.h"

#include "llama-kv-cache.h"

#include <cstdint>
#include <memory>
#include <vector>

// The tokens of one sequence in a batch, and the steps that compute them.
struct h2o_stream_call {
    h2o_stream * stream;
    uint32_t     first;    // index of its first token in the batch
    uint32_t     n_tokens;

    std::vector<h2o_step> steps;

    bool begun = false;

    // it can be computed together with others
    bool is_decoded_token() const { return n_tokens == 1 && steps.front().phase == h2o_step::DECODE; }
};

// A step of one of the calls.
struct h2o_stream_step {
    h2o_stream * stream;
    h2o_step     step;
    size_t       i_call;
};

// Walks the steps of all sequences of a batch. An ubatch is one step, or decode steps of several sequences, of a token each.
class llama_memory_h2o_context : public llama_kv_cache_context {
public:
    // simulates a full cache, to reserve the compute buffers
    explicit llama_memory_h2o_context(llama_memory_h2o * memory);

    llama_memory_h2o_context(
            llama_memory_h2o * memory,
            llama_kv_cache::slot_info_vec_t sinfos,
            llama_kv_cache::slot_info_vec_t dense_sinfos, // for the dense layers' cache, if there is one
            std::vector<llama_ubatch> ubatches,
            std::vector<h2o_stream_call> calls,
            std::vector<std::vector<h2o_stream_step>> steps);

    // calls that did not come to their end are undone
    ~llama_memory_h2o_context() override;

    bool next()  override;
    bool apply() override;
    bool finish(ggml_backend_sched_t sched) override;

    // the largest steps, whose compute buffers are reserved
    std::vector<h2o_step> largest_steps() const;

    // builds memory sets by the threads of the last one, which is the CPU's, and moves rows by the others, from now on
    void use_backends(const std::vector<ggml_backend_t> & backends) const;

    // The step that graphs are reserved for from now on; else a whole chunk with a full memory set, and one decoded token of
    // every sequence.
    void set_reserve_step(const h2o_step & step) { reserve_step = step; }

    // the steps that a graph for the ubatch computes
    std::vector<h2o_stream_step> get_steps(const llama_ubatch & ubatch) const;

    llama_memory_h2o * const memory;

    std::unique_ptr<llama_kv_cache_context> dense; // the same for the dense layers' cache, if there is one

    // rows that a decode step of a dense layer reads, padding among them
    uint32_t n_kv_dense() const { return (dense ? dense.get() : this)->get_n_kv(); }

private:
    void begin_step(const h2o_stream_step & part, uint32_t first);

    // the step's tokens, from `first` on in the ubatch
    void read_text(const h2o_stream_step & part, uint32_t first);

    bool finish_step(const h2o_stream_step & part, int64_t t_us);

    std::vector<h2o_stream_call> calls;
    std::vector<std::vector<h2o_stream_step>> steps; // of every ubatch; empty: reserve

    size_t  i_step     = 0;
    int64_t t_start_us = 0;

    h2o_step reserve_step = {};
};
