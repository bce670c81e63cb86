#include "h2o/llama/graph/attention-input.h"

#include "h2o/config/refusal.h"
#include "h2o/graph/profile.h"
#include "h2o/graph/rope.h"
#include "h2o/llama/memory/side/contexts.h"

#include "llama-impl.h"

#include "ggml-backend.h"

#include <algorithm>

std::unique_ptr<h2o_attention_input> h2o_attention_input::create(ggml_context * ctx, const llama_ubatch & ubatch,
        const llama_hparams & hparams, const llama_cparams & cparams, const llama_kv_cache_context * mctx) {
    const auto * mctx_h2o = h2o_steps_of(mctx);

    return mctx_h2o ? std::make_unique<h2o_attention_input>(ctx, ubatch, hparams, cparams, mctx_h2o) : nullptr;
}

h2o_attention_input::h2o_attention_input(ggml_context * ctx, const llama_ubatch & ubatch,
        const llama_hparams & hparams, const llama_cparams & cparams, const h2o_step_context * mctx)
    : llm_graph_input_attn_kv(hparams, cparams, mctx), memory(mctx->memory), dense(mctx->dense.get()) {
    const auto steps_of_ubatch = mctx->get_steps(ubatch);
    for (const auto & s : steps_of_ubatch) {
        const auto shape  = h2o_shape_of(memory.env, s.kv->state(), s.kv->id, s.step, mctx->n_kv_text(),
                steps_of_ubatch.size() == 1);
        const auto inputs = h2o_make_inputs(ctx, memory.env, s.kv->state(), s.step, shape);

        steps.push_back({ s.kv, { ctx, nullptr, memory.env, s.kv->state(), s.step, shape, inputs, {}, {}, {}, {} } });
    }
    if (dense && stores_kv()) {
        dense_k_idxs = dense->build_input_k_idxs(ctx, ubatch);
        dense_v_idxs = dense->build_input_v_idxs(ctx, ubatch);
    }
    if (memory.index && stores_kv()) {
        index_rows = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, ubatch.n_tokens);
        ggml_set_input(index_rows);
    }
}

void h2o_attention_input::set_input(const llama_ubatch * ubatch) {
    auto & now = *memory.current;

    mctx      = &now;
    dense     = now.dense.get();
    now.graph = this;

    llm_graph_input_attn_kv::set_input(ubatch);

    if (dense_k_idxs) {
        dense->set_input_k_idxs(dense_k_idxs, ubatch);
        if (dense_v_idxs->buffer) { // not with MLA, where V is in K
            dense->set_input_v_idxs(dense_v_idxs, ubatch);
        }
    }
    const auto steps_now = now.get_steps(*ubatch); // of the same shape
    for (size_t i = 0; i < steps.size(); ++i) {
        auto & s = steps[i];
        s.graph.step = steps_now[i].step;
        h2o_fill_inputs(s.graph.inputs, memory.env, s.kv->state(), s.graph.step, s.graph.shape);
        s.kv->counts.n_reused += was_computed;
    }
    if (index_rows && index_rows->buffer) {
        std::vector<int64_t> rows;
        for (const auto & s : steps) {
            for (uint32_t i = 0; i < s.graph.step.n_tokens; ++i) {
                rows.push_back((int64_t) (s.kv->id*memory.index->n_rows) + s.graph.step.pos + i);
            }
        }
        ggml_backend_tensor_set(index_rows, rows.data(), 0, ggml_nbytes(index_rows));
    }
    was_computed = true;
}

bool h2o_attention_input::can_reuse(const llm_graph_params & params) {
    const auto * mctx_new = h2o_steps_of(params.mctx);
    if (!mctx_new) {
        return false;
    }
    if (has_upstreams_attention) {
        llm_graph_params own = params;
        own.mctx = mctx_new;
        if (!llm_graph_input_attn_kv::can_reuse(own)) {
            return false;
        }
    }

    const auto steps_new = mctx_new->get_steps(params.ubatch);
    if (steps_new.size() != steps.size()) {
        return false;
    }
    for (size_t i = 0; i < steps.size(); ++i) {
        const auto & s = steps_new[i];
        if (!(h2o_shape_of(memory.env, s.kv->state(), s.kv->id, s.step, mctx_new->n_kv_text(),
                steps.size() == 1) == steps[i].graph.shape)) {
            return false;
        }
    }
    return true;
}

h2o_attention_input * h2o_attention_input::begin_layer(llm_graph_input_attn_kv * inp, ggml_context * ctx,
        ggml_tensor *& k, int il) {
    if (!inp->cparams.h2o.enabled()) {
        return nullptr;
    }
    auto * res = static_cast<h2o_attention_input *>(inp);

    const auto & env = res->memory.env;
    const auto & layer = *env.store.layer(res->memory.caches.source(il));
    if (k && layer.k.mean) {
        k = ggml_sub(ctx, k, layer.k.mean);
    }
    if (res->steps.front().graph.step.phase == h2o_step::DECODE &&
            env.decodes_by_upstream(layer, res->steps.size() == 1)) {
        res->has_upstreams_attention = true;
        return nullptr;
    }
    return res;
}

void h2o_attention_input::store(const llm_graph_context & graph, ggml_tensor * k, ggml_tensor * v, int il) {
    const bool  in_dense = memory.caches.is_in_dense_cache(il);
    const auto * cache   = in_dense ? dense : mctx;

    ggml_build_forward_expand(graph.gf, cache->cpy_k(graph.ctx0, k, in_dense ? dense_k_idxs : get_k_idxs(), il));
    if (!memory.store.layer(il)->v_is_in_k()) {
        ggml_build_forward_expand(graph.gf, cache->cpy_v(graph.ctx0, v, in_dense ? dense_v_idxs : get_v_idxs(), il));
    }

    if (memory.index && memory.index->has(il)) {
        ggml_build_forward_expand(graph.gf, memory.index->store(graph.ctx0, il, k, index_rows));
    }
}

// as upstream's build_attn has it
static ggml_tensor * multiply(const llm_graph_context & graph, ggml_tensor * wo, ggml_tensor * wo_b, ggml_tensor * wo_s,
        ggml_tensor * cur) {
    if (wo && (graph.arch == LLM_ARCH_GLM4 || graph.arch == LLM_ARCH_GLM4_MOE || graph.arch == LLM_ARCH_JAIS2)) {
        cur = graph.build_lora_mm(wo, cur);
        ggml_prec_set_acc(cur, GGML_PREC_F32);
        cur = wo_s ? ggml_mul(graph.ctx0, cur, wo_s) : cur;
    } else if (wo) {
        cur = graph.build_lora_mm(wo, cur, wo_s);
    }
    return wo_b ? ggml_add(graph.ctx0, cur, wo_b) : cur;
}

ggml_tensor * h2o_attention_input::build_attn(const llm_graph_context & graph, ggml_tensor * wo, ggml_tensor * wo_b,
        ggml_tensor * wo_s, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * kq_b, ggml_tensor * sinks,
        ggml_tensor * v_mla, float kq_scale, int il) {
    if (kq_b) {
        throw h2o_refusal(h2o_reason::MODEL,
                "[h2o] H2O does not work with models that have attention biases. Switch H2O off");
    }

    const auto rotated = [&](ggml_tensor * x, ggml_tensor * rot) {
        return x && rot ? llama_mul_mat_hadamard(graph.ctx0, x, rot) : x;
    };
    q = rotated(q, self_k_rot);
    k = rotated(k, self_k_rot);
    v = rotated(v, self_v_rot);

    ggml_build_forward_expand(graph.gf, q);
    if (stores_kv() && k) {
        ggml_build_forward_expand(graph.gf, v);
        ggml_build_forward_expand(graph.gf, k);
        store(graph, k, v, il);
        if (memory.finds_ropes && !memory.caches.is_in_dense_cache(il)) {
            memory.store.set_rope(il, h2o_find_rope(k, self_k_rot, il));
        }
    }
    h2o_profile_ends_part(ggml_graph_node(graph.gf, -1), H2O_PART_REST);

    h2o_layer_attention a = { *memory.store.layer(memory.caches.source(il)), memory.caches.source(il) == il, sinks,
            kq_scale, 0.0f };
    if (graph.arch == LLM_ARCH_GROK) {
        a.scale  *= hparams.f_attn_out_scale;
        a.softcap = hparams.f_attn_logit_softcapping;
    } else if (hparams.attn_soft_cap) {
        a.softcap = hparams.f_attn_logit_softcapping;
    }

    ggml_tensor * cur = nullptr;

    uint32_t first = 0;
    for (auto & s : steps) {
        ggml_tensor * q_step = steps.size() == 1 ? q :
            ggml_view_3d(graph.ctx0, q, q->ne[0], q->ne[1], s.graph.step.n_tokens, q->nb[1], q->nb[2], first*q->nb[2]);
        first += s.graph.step.n_tokens;

        s.graph.gf = graph.gf;
        ggml_tensor * o = h2o_build_attention(s.graph, a, q_step);

        cur = cur ? ggml_concat(graph.ctx0, cur, o, 1) : o;

        if (!cparams.offload_kqv) {
            // all nodes between the KV store and the attention output are run on the CPU
            ggml_backend_sched_set_tensor_backend(graph.sched, cur, graph.backend_cpu);
        }

        ggml_build_forward_expand(graph.gf, cur);
    }

    if (v_mla) {
        cur = ggml_permute(graph.ctx0, ggml_reshape_3d(graph.ctx0, cur, v_mla->ne[0], v_mla->ne[2], cur->ne[1]), 0, 2,
                1, 3);
        cur = ggml_cont(graph.ctx0, ggml_permute(graph.ctx0, ggml_mul_mat(graph.ctx0, v_mla, cur), 0, 2, 1, 3));
        cur = ggml_reshape_2d(graph.ctx0, cur, cur->ne[0]*cur->ne[1], cur->ne[2]);
    }
    graph.cb(cur, "kqv_out", il);
    return multiply(graph, wo, wo_b, wo_s, rotated(cur, self_v_rot));
}

static void read_sums(const std::vector<h2o_step_graph::sums_t> & all_sums, const h2o_step & step, uint32_t chunk_size,
        h2o_sequence & sequence) {
    const uint32_t start = step.pos - step.pos % chunk_size;
    const uint32_t end   = step.pos + step.n_tokens;

    for (const auto & s : all_sums) {
        const uint32_t n_k   = s.t->ne[0]; // padding included
        const uint32_t first = step.phase == h2o_step::INTRA ? s.first : step.phase == h2o_step::TAIL ? 0 : start;
        const uint32_t n     = step.phase == h2o_step::INTRA ? n_k : step.phase == h2o_step::INTER ? 0 : end - first;

        for (int64_t i = 0; i < s.t->ne[2]; ++i) {
            const float * data = s.data.data() + i*n_k*s.t->ne[1];
            if (step.phase == h2o_step::DECODE) {
                sequence.add_generated(s.layer, { step.n_memory, start, step.pos - start + (uint32_t) i + 1 }, data, n_k);
                continue;
            }
            if (step.keeps_attention) {
                sequence.add_attention(s.layer, end, data, n_k);
            }
            if (sequence.state().is_scored) {
                sequence.add_scores(s.layer, { step.n_memory, first, n }, data, n_k);
            }
        }
    }
}

static void read_choices(std::vector<h2o_step_graph::choice_t> & choices, const h2o_step & step,
        const h2o_config & config, h2o_sequence & sequence) {
    const auto     tiles = h2o_tile_grid_of(step, config);
    const uint32_t end   = step.pos + step.n_tokens;

    for (auto & c : choices) {
        const auto     all     = std::make_shared<const std::vector<int32_t>>(std::move(c.data));
        const uint32_t n_tiles = c.t->ne[1];
        const uint32_t first   = tiles.n_tiles(step.n_tokens) - n_tiles;
        for (uint32_t i = 0; i < n_tiles; ++i) {
            const uint32_t start = step.pos - tiles.offset + (first + i)*tiles.size;
            sequence.set_extra_keys(c.layer, std::max(start, step.pos), std::min(start + tiles.size, end),
                    { all, i, n_tiles });
        }
    }
}

void h2o_attention_input::read_results(ggml_backend_sched_t sched, bool keeps_last) {
    bool has_some = false;

    const auto fetch = [&](auto & results) {
        for (auto & r : results) {
            r.data.resize(ggml_nelements(r.t));
            ggml_backend_tensor_get_async(ggml_backend_sched_get_tensor_backend(sched, r.t), r.t, r.data.data(), 0,
                    ggml_nbytes(r.t));
            has_some = true;
        }
    };
    for (auto & s : steps) {
        fetch(s.graph.sums);
        if (keeps_last || s.graph.step.keeps_choices) {
            fetch(s.graph.choices);
        }
    }
    if (has_some) {
        ggml_backend_sched_synchronize(sched);
    }
    for (auto & s : steps) {
        read_sums(s.graph.sums, s.graph.step, memory.config.chunk_size, s.kv->sequence);
        if (keeps_last || s.graph.step.keeps_choices) {
            read_choices(s.graph.choices, s.graph.step, memory.config, s.kv->sequence);
        }
    }
}
