#include "h2o/llama/hooks.h"

#include "h2o/llama/attention-input.h"

#include "llama-context.h"
#include "llama-cparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

h2o_config h2o_config_from_params(llama_context_params & params) {
    if (!params.h2o) {
        return {};
    }
    if (params.attention_type == LLAMA_ATTENTION_TYPE_NON_CAUSAL) {
        throw std::runtime_error("[h2o] H2O needs causal attention, but attention_type is non-causal");
    }
    params.kv_unified = false; // else each sequence would get a cache of all n_ctx tokens

    return h2o_config(*params.h2o, params.n_ubatch == 0 ? params.n_batch : std::min(params.n_batch, params.n_ubatch));
}

llama_memory_i * h2o_create_memory(const llama_model & model, const llama_memory_params & params, const llama_cparams & cparams,
        const llama_memory_i::layer_filter_cb & filter) {
    h2o_stream::check_model(model);

    return new llama_memory_h2o(model, params.type_k, params.type_v, /*flash_attention =*/ cparams.flash_attn, cparams.offload_kqv,
            cparams.n_ctx_seq, cparams.n_seq_max, cparams.n_batch, cparams.h2o, filter);
}

void h2o_check_memory(const llama_model & model, const llama_cparams & cparams, const llama_memory_i * memory) {
    if (cparams.h2o.enabled() && !dynamic_cast<const llama_memory_h2o *>(memory)) {
        throw std::runtime_error(format("[h2o] H2O needs a model on the plain KV cache, but %s has another kind of memory (sliding window, recurrent, or none). "
                    "Switch H2O off for it", model.arch_name().c_str()));
    }
    if (cparams.h2o.enabled() && cparams.pooling_type != LLAMA_POOLING_TYPE_NONE && cparams.pooling_type != LLAMA_POOLING_TYPE_LAST) {
        throw std::runtime_error("[h2o] H2O computes a text chunk by chunk, but this pooling type needs all of its embeddings at once: use none or last");
    }
}

void h2o_reserve(llama_context & ctx, llama_memory_context_i * mctx) {
    auto * h2o = dynamic_cast<llama_memory_h2o_context *>(mctx);
    if (!h2o) {
        return;
    }

    // a scheduler's last backend is the CPU's
    std::vector<ggml_backend_t> backends;
    for (int i = 0; i < ggml_backend_sched_get_n_backends(ctx.get_sched()); ++i) {
        backends.push_back(ggml_backend_sched_get_backend(ctx.get_sched(), i));
    }
    h2o->use_backends(backends);

    for (const auto & step : h2o->largest_steps()) {
        h2o->set_reserve_step(step);
        if (!ctx.graph_reserve(step.n_tokens, 1, 1, mctx)) {
            throw std::runtime_error("[h2o] not enough memory for the compute buffers: use a smaller n_ctx, n_batch or n_ubatch");
        }
    }
    h2o->set_reserve_step({});
}

uint32_t h2o_graph_max_nodes(const llama_model & model, const llama_cparams & cparams) {
    // phase 1 cuts a call into at most 3 runs of chunks, the attention of each takes fewer than 256 nodes. With lookups there
    // is one attention, of fewer than 300. That of a generated token, one for each sequence, takes fewer than 160
    // (a tail may read a cold store)
    const uint32_t n_stored = cparams.h2o.has_cold_store() ? h2o_graph::MAX_STORED_NODES : 0;

    return (std::max(3*256u, 160*cparams.n_seq_max) + n_stored)*model.hparams.n_layer_all;
}
