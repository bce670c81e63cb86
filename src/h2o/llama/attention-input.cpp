#include "h2o/llama/attention-input.h"

#include "h2o/graph/profile.h"

#include <stdexcept>

std::unique_ptr<llm_graph_input_attn_h2o> llm_graph_input_attn_h2o::create(
        const llama_hparams & hparams,
        const llama_cparams & cparams,
        const llama_kv_cache_context * mctx,
        const llama_ubatch & ubatch) {
    const auto * mctx_h2o = dynamic_cast<const llama_memory_h2o_context *>(mctx);

    return mctx_h2o ? std::make_unique<llm_graph_input_attn_h2o>(hparams, cparams, mctx_h2o, ubatch) : nullptr;
}

llm_graph_input_attn_h2o::llm_graph_input_attn_h2o(
        const llama_hparams & hparams,
        const llama_cparams & cparams,
        const llama_memory_h2o_context * mctx,
        const llama_ubatch & ubatch)
    : llm_graph_input_attn_kv(hparams, cparams, mctx), memory(mctx->memory), dense(mctx->dense.get()) {
    for (const auto & part : mctx->get_steps(ubatch)) {
        steps.emplace_back(part.stream, part.step, mctx->n_kv_dense(), memory->fused_attention, memory->flash_attention);
    }
}

void llm_graph_input_attn_h2o::set_input(const llama_ubatch * ubatch) {
    llm_graph_input_attn_kv::set_input(ubatch);

    if (dense_k_idxs) {
        dense->set_input_k_idxs(dense_k_idxs, ubatch);
        dense->set_input_v_idxs(dense_v_idxs, ubatch);
    }
    for (auto & step : steps) {
        step.set_input();
    }
}

bool llm_graph_input_attn_h2o::can_reuse(const llm_graph_params & params) {
    const auto * mctx_new = dynamic_cast<const llama_memory_h2o_context *>(params.mctx);
    if (!mctx_new) {
        return false;
    }

    bool res = !has_upstreams_attention || llm_graph_input_attn_kv::can_reuse(params);
    mctx  = mctx_new;
    dense = mctx_new->dense.get();

    const auto steps_new = mctx_new->get_steps(params.ubatch);

    res &= steps_new.size() == steps.size();
    for (size_t i = 0; res && i < steps.size(); ++i) {
        res = steps[i].can_reuse(steps_new[i].stream, steps_new[i].step, mctx_new->n_kv_dense());
    }
    return res;
}

llm_graph_input_attn_h2o * llm_graph_input_attn_h2o::begin_layer(llm_graph_input_attn_kv * inp, int il) {
    auto * res = dynamic_cast<llm_graph_input_attn_h2o *>(inp);
    if (!res) {
        return nullptr;
    }

    // upstream's takes several sequences only if they are neighbours
    if (res->steps.size() == 1 && res->steps.front().can_be_upstreams(il)) {
        res->has_upstreams_attention = true;
        return nullptr;
    }
    return res;
}

void llm_graph_input_attn_h2o::store(const llm_graph_context & graph, ggml_tensor * k, ggml_tensor * v, int il) {
    if (!memory->streams.front()->in_dense_cache[il]) {
        ggml_build_forward_expand(graph.gf, mctx->cpy_k(graph.ctx0, k, get_k_idxs(), il));
        ggml_build_forward_expand(graph.gf, mctx->cpy_v(graph.ctx0, v, get_v_idxs(), il));
        return;
    }

    if (!dense_k_idxs) {
        dense_k_idxs = dense->build_input_k_idxs(graph.ctx0, graph.ubatch);
        dense_v_idxs = dense->build_input_v_idxs(graph.ctx0, graph.ubatch);
    }
    ggml_build_forward_expand(graph.gf, dense->cpy_k(graph.ctx0, k, dense_k_idxs, il));
    ggml_build_forward_expand(graph.gf, dense->cpy_v(graph.ctx0, v, dense_v_idxs, il));
}

ggml_tensor * llm_graph_input_attn_h2o::build_attn(
        const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
        ggml_tensor * kq_b, ggml_tensor * sinks, float kq_scale, int il) {
    if (kq_b || sinks) {
        throw std::runtime_error("[h2o] H2O does not work with models that have attention biases or attention sinks. Switch H2O off");
    }

    ggml_build_forward_expand(graph.gf, q);
    if (stores_kv()) {
        ggml_build_forward_expand(graph.gf, v);
        ggml_build_forward_expand(graph.gf, k);

        store(graph, k, v, il);

        const auto & key_index = memory->streams.front()->key_index;
        if (key_index && key_index->has(il)) {
            ggml_build_forward_expand(graph.gf, key_index->store(graph.ctx0, il, k, get_k_idxs()));
        }
    }
    h2o_profile_ends_part(ggml_graph_node(graph.gf, -1), H2O_PART_REST);

    ggml_tensor * cur = nullptr;

    uint32_t first = 0;
    for (auto & step : steps) {
        ggml_tensor * q_step = steps.size() == 1 ? q :
            ggml_view_3d(graph.ctx0, q, q->ne[0], q->ne[1], step.n_tokens(), q->nb[1], q->nb[2], first*q->nb[2]);
        first += step.n_tokens();

        ggml_tensor * o = step.build_attn(graph, q_step, kq_scale, il);

        cur = cur ? ggml_concat(graph.ctx0, cur, o, 1) : o;

        if (!cparams.offload_kqv) {
            // all nodes between the KV store and the attention output are run on the CPU
            ggml_backend_sched_set_tensor_backend(graph.sched, cur, graph.backend_cpu);
        }

        ggml_build_forward_expand(graph.gf, cur);
    }

    return cur;
}
