#pragma once

#include "h2o/llama/memory/step-context.h"

#include "llama-graph.h"
#include "llama-kv-cache-iswa.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"

#include <memory>
#include <utility>
#include <vector>

// Upstream's context of a model with several kinds of memory; that of attention is H2O's.
template <typename context>
struct h2o_composed_context : context, h2o_batch_context {
    template <typename... parts>
    explicit h2o_composed_context(h2o_step_context * steps, parts &&... args)
        : context(std::forward<parts>(args)...), h2o_batch_context(steps) {}

    bool finish(const llm_graph_result & res, ggml_backend_sched_t sched) override { return h2o->finish(res, sched); }
};

// Side caches get cells only for a step that will be computed: upstream would also ask them after a refusal.
template <typename context>
struct h2o_side_context : context {
    template <typename... parts>
    explicit h2o_side_context(const h2o_step_context * steps, parts &&... args)
        : context(std::forward<parts>(args)...), steps(steps) {}

    bool apply() override { return steps->is_applied && context::apply(); }

    const h2o_step_context * steps;
};

// nullptr if it is not of an H2O context
inline h2o_step_context * h2o_steps_of(const llama_memory_context_i * mctx) {
    const auto * context = dynamic_cast<const h2o_batch_context *>(mctx);

    return context ? context->h2o : nullptr;
}

// The batch context for the model's kind of memory, made of the attention's and the side caches'. Null: the side caches
// are full. No ubatches: simulates full caches.
llama_memory_context_ptr h2o_compose(std::unique_ptr<h2o_step_context> attention,
        const std::vector<llama_ubatch> & ubatches);

// Graph input of a hybrid model: attention's and the recurrent layers' own inputs are asked, which may be H2O's.
template <typename input>
struct h2o_hybrid_input : input {
    using input::input;

    void set_input(const llama_ubatch * ubatch) override {
        this->inp_attn->set_input(ubatch);
        this->inp_rs  ->set_input(ubatch);
    }

    bool can_reuse(const llm_graph_params & params) override {
        this->mctx = static_cast<decltype(this->mctx)>(params.mctx);

        llm_graph_params attn = params;
        llm_graph_params recr = params;
        attn.mctx = this->mctx->get_attn();
        recr.mctx = this->mctx->get_recr();

        // both take the new context
        const bool same_attn = this->inp_attn->can_reuse(attn);
        const bool same_recr = this->inp_rs  ->can_reuse(recr);
        return same_attn && same_recr;
    }
};
