#include "h2o/llama/interface/hooks.h"

#include "h2o/config/options.h"
#include "h2o/config/refusal.h"
#include "h2o/llama/memory/side/contexts.h"

#include "llama-context.h"
#include "llama-cparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <algorithm>

void h2o_configure(llama_context_params & params, llama_cparams & cparams) {
    if (!params.h2o) {
        return;
    }
    if (!llama_h2o_params_enabled(params.h2o)) {
        h2o_check_options(*params.h2o);
        cparams.h2o.products = params.h2o->products;
        return;
    }
    if (params.attention_type == LLAMA_ATTENTION_TYPE_NON_CAUSAL) {
        throw h2o_refusal(h2o_reason::MODEL, "[h2o] H2O needs causal attention, but attention_type is non-causal");
    }
    params.kv_unified = false; // else each sequence would get a cache of all n_ctx tokens
    cparams.n_rs_seq  = 0;     // H2O takes recurrent layers back to boundaries, not by single tokens

    cparams.h2o      = h2o_config(*params.h2o);
    cparams.n_ubatch = std::min(cparams.n_ubatch, cparams.h2o.chunk_size); // no step is longer than a chunk
}

llama_memory_i * h2o_create_memory(const llama_model & model, const llama_memory_params & params,
        const llama_cparams & cparams,
        const h2o_model_layers & layers) {
    return new h2o_memory(model, params, cparams, layers);
}

void h2o_check_memory(const llama_model & model, const llama_cparams & cparams, const llama_memory_i * memory) {
    if (cparams.h2o.enabled() && !h2o_memory::of(memory)) {
        throw h2o_refusal(h2o_reason::MODEL,
                format("[h2o] H2O does not work with this model: %s %s. Switch H2O off for it",
                model.arch_name().c_str(),
                    !memory ? "keeps no K and V" : llama_model_is_recurrent(&model) ?
                            "is recurrent in every layer: its memory does not grow" :
                    "has a sparse attention of its own, which it was trained with"));
    }
    if (cparams.h2o.enabled() && cparams.pooling_type != LLAMA_POOLING_TYPE_NONE &&
            cparams.pooling_type != LLAMA_POOLING_TYPE_LAST) {
        throw h2o_refusal(h2o_reason::MODEL,
                "[h2o] H2O computes a text chunk by chunk, but this pooling type needs all of its embeddings at "
                        "once: use none or last");
    }
}

[[noreturn]] static void refuse_buffers() {
    throw h2o_refusal(h2o_reason::MEMORY,
            "[h2o] not enough memory for the compute buffers: use a smaller n_ctx, n_batch or n_ubatch");
}

// In the graph of a short prompt. Throws h2o_refusal if keys cannot be rotated.
static void find_ropes(llama_context & ctx, llama_memory_context_i * mctx, uint32_t n_seqs, h2o_memory & memory) {
    memory.finds_ropes = true;
    if (!ctx.graph_reserve(2*n_seqs, n_seqs, 1, mctx)) {
        refuse_buffers();
    }
    memory.finds_ropes = false;
    memory.store.check_ropes(memory.index.get(), memory.backends);
}

void h2o_reserve(llama_context & ctx, llama_memory_context_i * mctx) {
    auto * h2o = h2o_steps_of(mctx);
    if (!h2o) {
        return;
    }

    // a scheduler's last backend is the CPU's
    auto & backends = h2o->memory.backends;
    backends.clear();
    for (int i = 0; i < ggml_backend_sched_get_n_backends(ctx.get_sched()); ++i) {
        backends.push_back(ggml_backend_sched_get_backend(ctx.get_sched(), i));
    }

    // a cache of windows that is simulated full has all sequences in it, with as many tokens each
    const uint32_t n_seqs = h2o->memory.caches.side.window ? h2o->memory.sequences().size() : 1;

    const auto & memory   = h2o->memory;
    const auto & is_fused = memory.env.is_fused;
    const bool   fused    = std::count(is_fused.begin(), is_fused.end(), true) > 0;

    for (auto step : h2o_largest_steps(memory.config, memory.store.layout.n_positions(), memory.n_batch,
            memory.n_ubatch, fused)) {
        step.n_tokens = std::max(step.n_tokens/n_seqs, 1u)*n_seqs;
        h2o->set_reserve_step(step);
        if (!ctx.graph_reserve(step.n_tokens, n_seqs, 1, mctx)) {
            refuse_buffers();
        }
    }
    h2o->set_reserve_step({});

    if (memory.store.layout.moves_keys || (!memory.store.layout.is_compact && memory.caches.side.empty() && !memory.intra)) try {
        find_ropes(ctx, mctx, n_seqs, h2o->memory);
        h2o->memory.has_ropes = true;
    } catch (const h2o_refusal &) { // keys stay where they are
        h2o->memory.finds_ropes = false;
        if (memory.store.layout.moves_keys) {
            throw;
        }
    }
}

h2o_rotated_ubatch::h2o_rotated_ubatch(const llama_memory_context_i * mctx, const llama_ubatch & ubatch) :
        ubatch(ubatch) {
    const auto * h2o = h2o_steps_of(mctx);
    if (!h2o || !h2o->memory.store.layout.moves_keys || !ubatch.pos) {
        return;
    }
    // with M-RoPE, text has its position in each of the first three sections, and 0 in the fourth
    for (uint32_t i = 0; i < ubatch.n_tokens*ubatch.n_pos; ++i) {
        pos.push_back(i < 3*ubatch.n_tokens ? h2o->memory.store.positions.own(ubatch.pos[i]) : 0);
    }
    this->ubatch.pos = pos.data();
}

uint32_t h2o_graph_max_nodes(const llama_memory_i * memory, uint32_t n_ubatch) {
    constexpr uint32_t N_FUSED    = 32;   // of an attention, with all that a model can ask for
    constexpr uint32_t N_COMPOSED = 384;
    constexpr uint32_t N_TAIL     = 1024; // of one that reads the cold store in ranges

    const auto * h2o = h2o_memory::of(memory);
    if (!h2o) {
        return 0;
    }
    const uint32_t S        = h2o->config.chunk_size;
    const uint32_t n_seq    = h2o->sequences().size();
    const uint32_t n_tokens = h2o->intra ? std::max(n_ubatch, h2o->n_batch) : n_ubatch;
    const auto &   layers   = h2o->store.layers();

    const bool is_fused = std::all_of(layers.begin(), layers.end(),
            [&](const h2o_kv_layer & layer) { return h2o->env.is_fused[layer.il]; });

    // Tokens of several sequences share a graph, and a step may begin within a chunk.
    const uint32_t n_attentions = (n_tokens + S - 1)/S + n_seq;

    return layers.size()*(n_attentions*(is_fused ? N_FUSED : N_COMPOSED) +
            (h2o->config.has_cold_store() ? N_TAIL : 0));
}
