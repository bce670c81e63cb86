#include "h2o/llama/interface/hooks.h"

#include "h2o/config/options.h"
#include "h2o/config/refusal.h"
#include "h2o/graph/build.h"
#include "h2o/llama/memory/side/contexts.h"

#include "llama-context.h"
#include "llama-cparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include "ggml-cpp.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

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
    if (cparams.h2o.enabled() && !dynamic_cast<const h2o_memory *>(memory)) {
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

    std::map<int32_t, h2o_rope> ropes;
    h2o_for_inputs(*ctx.get_gf_res_reserve(), [&](const h2o_computed_graph & graph) { graph.add_ropes(ropes); });
    memory.store.set_ropes(std::move(ropes));
    memory.store.check_ropes(memory.index.get(), memory.backends);
}

void h2o_reserve(llama_context & ctx, llama_memory_context_i * mctx) {
    auto * h2o = const_cast<h2o_step_context *>(h2o_steps_of(mctx));
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

    const auto & memory = h2o->memory;
    const auto & kinds  = memory.env.kinds;
    const bool   fused  = std::count(kinds.begin(), kinds.end(), H2O_ATTENTION_FUSED) > 0;

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

// of one layer's attention
static uint32_t count_nodes(const h2o_memory & memory, const h2o_step & step, const h2o_kv_layer & layer) {
    constexpr size_t N_MAX = 1 << 14;

    ggml_init_params params = { N_MAX*ggml_tensor_overhead() + ggml_graph_overhead_custom(N_MAX, false), nullptr,
            true };
    ggml_context_ptr ctx { ggml_init(params) };

    const auto & state  = memory.sequence(0)->state();
    const auto   shape  = h2o_shape_of(memory.env, state, 0, step, step.pos + step.n_tokens, /*alone =*/ false);
    const auto   inputs = h2o_make_inputs(ctx.get(), memory.env, state, step, shape);

    h2o_step_graph g = { ctx.get(), ggml_new_graph_custom(ctx.get(), N_MAX, false), memory.env, state, step, shape,
            inputs, {}, {}, {}, {} };

    // as many as with everything that a model can ask for
    ggml_tensor * q     = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, layer.k.n_embd, layer.n_head, step.n_tokens);
    ggml_tensor * sinks = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, layer.n_head);
    ggml_build_forward_expand(g.gf, h2o_build_attention(g, { layer, true, sinks, 1.0f, 1.0f }, q));

    return ggml_graph_n_nodes(g.gf);
}

uint32_t h2o_graph_max_nodes(const llama_memory_i * memory, uint32_t n_ubatch) {
    const auto * h2o = dynamic_cast<const h2o_memory *>(memory);
    if (!h2o) {
        return 0;
    }

    const auto &   config      = h2o->config;
    const uint32_t S           = config.chunk_size;
    const uint32_t n_positions = h2o->store.layout.n_positions();
    const uint32_t n_seq       = h2o->sequences().size();

    // late in a text, with most keys; a tail reads at most as many ranges of a cold store as after 32 chunks
    const uint32_t pos      = config.chunk_start(n_positions - 1);
    const uint32_t n        = std::min(S, n_positions - pos);
    const uint32_t n_memory = config.n_memory(pos);
    const uint32_t tail_pos = std::min(pos, 32*S);

    // Graphs are reserved for a whole ubatch, in which tokens of several sequences share a graph. Phase 1 may begin
    // within a chunk.
    const uint32_t n_chunks = (n_ubatch + n_seq + S - 1)/S;
    const uint32_t n_intra  = (std::min(h2o->n_batch, n_positions) + n_seq + S - 1)/S + 1;

    std::vector<std::pair<h2o_step, uint32_t>> steps = {
        { { h2o_step::DECODE, pos, 1, 0, config.decode == LLAMA_H2O_DECODE_MEMORY ? n_memory : 0, false }, n_seq },
    };
    if (!config.evict || config.has_cold_store()) {
        steps.push_back({ { h2o_step::TAIL, tail_pos, std::min(S, n_positions - tail_pos), 0, 0, false }, 1 });
    }
    if (config.schedule == LLAMA_H2O_SCHEDULE_TWO_PHASE) {
        steps.push_back({ { h2o_step::INTRA, 0, std::min({ S, n_positions, h2o->n_batch }), 0, 0, true }, n_intra });
        steps.push_back({ { h2o_step::INTER, pos, std::min(n, h2o->n_batch), 0, n_memory, false }, n_chunks });
    } else {
        steps.push_back({ { h2o_step::SINGLE_PASS, pos, n, 0, n_memory, false }, n_chunks });
    }

    uint32_t res = 0;
    for (const auto & [step, n_times] : steps) {
        for (const auto & layer : h2o->store.layers()) {
            // with a view of the queries, and what joins the results
            res = std::max(res, n_times*(count_nodes(*h2o, step, layer) + 2));
        }
    }
    return res*h2o->store.layers().size();
}
