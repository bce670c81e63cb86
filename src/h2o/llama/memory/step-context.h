#pragma once

#include "h2o/llama/memory/call.h"

#include "llama-graph.h"
#include "llama-kv-cache.h"

#include <cstdint>
#include <memory>
#include <vector>

// A batch's context: H2O's own, or upstream's that has it.
struct h2o_batch_context {
    explicit h2o_batch_context(h2o_step_context * h2o) : h2o(h2o) {}

    virtual ~h2o_batch_context() = default;

    h2o_step_context * const h2o;
};

// Walks the steps of all sequences of a batch. An ubatch is one step, or one generated token of several sequences.
class h2o_step_context : public llama_kv_cache_context, public h2o_batch_context {
public:
    // simulates a full cache, to reserve the compute buffers
    explicit h2o_step_context(h2o_memory & memory);

    h2o_step_context(
            h2o_memory & memory,
            slot_info_vec_t sinfos,
            slot_info_vec_t dense_sinfos, // for the dense layers' cache, if there is one
            std::vector<llama_ubatch> ubatches,
            h2o_calls calls,
            std::vector<std::vector<h2o_call_step>> steps);

    bool next()  override;
    bool apply() override;
    bool finish(const llm_graph_result & res, ggml_backend_sched_t sched) override;

    // The step to reserve graphs for; else a whole chunk with a full memory set, and a generated token of each
    // sequence.
    void set_reserve_step(const h2o_step & step) { reserve_step = step; }

    // the steps that a graph for the ubatch computes
    std::vector<h2o_call_step> get_steps(const llama_ubatch & ubatch) const;

    h2o_memory & memory;

    bool is_applied = false; // the current step will be computed

    h2o_computed_graph * graph = nullptr; // which computes it

    std::unique_ptr<llama_kv_cache_context> dense; // the same for the dense layers' cache, if there is one

    // rows that attention to everything reads, padding among them
    uint32_t n_kv_text() const { return (dense ? dense.get() : this)->get_n_kv(); }

private:
    h2o_calls calls;
    std::vector<std::vector<h2o_call_step>> steps; // of every ubatch; empty: reserve

    size_t i_step = 0;

    h2o_step reserve_step = {};
};
