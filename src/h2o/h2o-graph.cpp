#include "h2o-graph.h"

#include "h2o-softmax.h"

#include "llama-model.h"

#include <algorithm>
#include <stdexcept>

std::unique_ptr<llm_graph_input_attn_h2o> llm_graph_input_attn_h2o::create(
        const llama_hparams & hparams,
        const llama_cparams & cparams,
        const llama_kv_cache_context * mctx,
        uint32_t n_tokens) {
    const auto * mctx_h2o = dynamic_cast<const llama_kv_cache_h2o_context *>(mctx);

    return mctx_h2o ? std::make_unique<llm_graph_input_attn_h2o>(hparams, cparams, mctx_h2o, n_tokens) : nullptr;
}

llm_graph_input_attn_h2o::llm_graph_input_attn_h2o(
        const llama_hparams & hparams,
        const llama_cparams & cparams,
        const llama_kv_cache_h2o_context * mctx,
        uint32_t n_tokens)
    : llm_graph_input_attn_kv(hparams, cparams, mctx), kv(mctx->get_kv()), step(mctx->get_step(n_tokens)) {
}

void llm_graph_input_attn_h2o::set_input(const llama_ubatch * ubatch) {
    llm_graph_input_attn_kv::set_input(ubatch);

    for (const auto & memory : memories) {
        h2o_gather_set_indices(memory.indices, *kv, memory.il);
    }
}

bool llm_graph_input_attn_h2o::can_reuse(const llm_graph_params & params) {
    const auto * mctx_new = dynamic_cast<const llama_kv_cache_h2o_context *>(params.mctx);
    if (!mctx_new) {
        return false;
    }

    // offsets and counts of a step are part of the graph: a graph of one phase never serves the other
    const h2o_step step_new = mctx_new->get_step(params.ubatch.n_tokens);
    if (step.phase != h2o_step::DECODE) {
        mctx = mctx_new;
        return step_new == step;
    }

    return step_new.phase == h2o_step::DECODE && llm_graph_input_attn_kv::can_reuse(params);
}

llm_graph_input_attn_h2o * llm_graph_input_attn_h2o::cast_sparse(llm_graph_input_attn_kv * inp) {
    auto * res = dynamic_cast<llm_graph_input_attn_h2o *>(inp);

    return res && res->step.phase != h2o_step::DECODE ? res : nullptr;
}

ggml_tensor * llm_graph_input_attn_h2o::build_attn(
        const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
        ggml_tensor * kq_b, ggml_tensor * sinks, float kq_scale, int il) {
    if (kq_b || sinks) {
        throw std::runtime_error("[h2o] H2O does not work with models that have attention biases or attention sinks. Switch H2O off");
    }

    ggml_tensor * cur = step.phase == h2o_step::INTRA ?
        build_intra(graph, q, k, v, kq_scale, il) :
        build_inter(graph, q, kq_scale, il);

    if (!cparams.offload_kqv) {
        // all nodes between the KV store and the attention output are run on the CPU
        ggml_backend_sched_set_tensor_backend(graph.sched, cur, graph.backend_cpu);
    }

    ggml_build_forward_expand(graph.gf, cur);

    return cur;
}

std::vector<llm_graph_input_attn_h2o::group> llm_graph_input_attn_h2o::groups() const {
    const uint32_t S   = kv->state.config.chunk_size;
    const uint32_t end = step.pos + step.n_tokens;

    std::vector<group> res;

    // queries [p, p_end) of every chunk in blocks: a block leaves out the keys after its end, which causality hides.
    // 4 blocks compute 5/8 of the [S x S] logits and hold 1/4 of them at a time
    const uint32_t n_block = (S + H2O_QUERY_BLOCKS - 1)/H2O_QUERY_BLOCKS;

    const auto add_blocks = [&](uint32_t chunk_start, uint32_t p, uint32_t p_end, uint32_t n_chunks) {
        while (p < p_end) {
            const uint32_t block_end = std::min(p_end, p + n_block - (p - chunk_start)%n_block);
            res.push_back({ chunk_start, block_end - chunk_start, p - step.pos, block_end - p, n_chunks });
            p = block_end;
        }
    };

    uint32_t p = step.pos;
    while (p < end) {
        const uint32_t chunk_start = p/S*S;

        if (p == chunk_start && end - p >= S) {
            const uint32_t n_chunks = (end - p)/S;
            add_blocks(chunk_start, p, p + S, n_chunks);
            p += n_chunks*S;
        } else {
            const uint32_t p_end = std::min(end, chunk_start + S);
            add_blocks(chunk_start, p, p_end, 1);
            p = p_end;
        }
    }

    return res;
}

ggml_tensor * llm_graph_input_attn_h2o::build_kq(const llm_graph_context & graph, ggml_tensor * k, ggml_tensor * q) const {
    ggml_context * ctx0 = graph.ctx0;

    ggml_tensor * kq = ggml_mul_mat(ctx0, k, q);
    ggml_prec_set_acc(kq, GGML_PREC_F32);

    if (hparams.attn_soft_cap) {
        const float cap = hparams.f_attn_logit_softcapping;
        kq = ggml_scale(ctx0, ggml_tanh(ctx0, ggml_scale(ctx0, kq, 1.0f/cap)), cap);
    }

    return kq;
}

void llm_graph_input_attn_h2o::build_column_sums(const llm_graph_context & graph, ggml_tensor * weights, const group & keys, int il) {
    ggml_tensor * t = h2o_column_sums_build(graph.ctx0, weights, hparams.n_head_kv(il));
    ggml_set_output(t);
    ggml_build_forward_expand(graph.gf, t);

    colsums.push_back({ il, keys, t });
}

// phase 1: [S x S] causal attention of every chunk to itself, whole chunks as one batch
ggml_tensor * llm_graph_input_attn_h2o::build_intra(
        const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, float kq_scale, int il) {
    ggml_context * ctx0 = graph.ctx0;
    ggml_cgraph  * gf   = graph.gf;

    ggml_build_forward_expand(gf, q);
    ggml_build_forward_expand(gf, v);
    ggml_build_forward_expand(gf, k);

    ggml_build_forward_expand(gf, mctx->cpy_k(ctx0, k, get_k_idxs(), il));
    ggml_build_forward_expand(gf, mctx->cpy_v(ctx0, v, get_v_idxs(), il));

    const uint32_t S      = kv->state.config.chunk_size;
    const int64_t  n_head = q->ne[1];
    const int64_t  d_v    = hparams.n_embd_head_v(il);

    ggml_tensor * keys   = kv->keys  (ctx0, il); // [n_embd_head_k, n_kv, n_head_kv]
    ggml_tensor * values = kv->values(ctx0, il); // [n_embd_head_v, n_kv, n_head_kv], transposed: [n_kv, n_embd_head_v, n_head_kv]

    for (const auto & g : groups()) {
        ggml_tensor * k_g = ggml_view_4d(ctx0, keys, keys->ne[0], g.n_k, keys->ne[2], g.n_chunks,
                keys->nb[1], keys->nb[2], S*keys->nb[1], g.pos_k*keys->nb[1]);

        ggml_tensor * v_g;
        if (kv->v_is_transposed()) {
            v_g = ggml_view_4d(ctx0, values, g.n_k, d_v, values->ne[2], g.n_chunks,
                    values->nb[1], values->nb[2], S*values->nb[0], g.pos_k*values->nb[0]);
        } else {
            v_g = ggml_view_4d(ctx0, values, d_v, g.n_k, values->ne[2], g.n_chunks,
                    values->nb[1], values->nb[2], S*values->nb[1], g.pos_k*values->nb[1]);
            if (ggml_is_quantized(v_g->type)) {
                v_g = ggml_cast(ctx0, v_g, GGML_TYPE_F32);
            }
            v_g = ggml_cont(ctx0, ggml_transpose(ctx0, v_g));
        }

        ggml_tensor * q_g = ggml_view_4d(ctx0, q, q->ne[0], g.n_q, n_head, g.n_chunks,
                q->nb[2], q->nb[1], S*q->nb[2], g.offset_q*q->nb[2]);

        ggml_tensor * kq = build_kq(graph, k_g, ggml_cont(ctx0, q_g));

        // query i of the group sees keys [0, n_k - n_q + i]
        kq = ggml_diag_mask_inf(ctx0, kq, g.n_k - g.n_q);

        ggml_tensor * weights = nullptr;
        const h2o_softmax_state intra = h2o_softmax_state_build(ctx0, kq, kq_scale, v_g, &weights);

        const auto & cache = kv->intra->get(il);

        const auto state_row = [&](ggml_tensor * t) {
            return ggml_view_4d(ctx0, t, 1, g.n_q, n_head, g.n_chunks, t->nb[0], t->nb[1], S*t->nb[0], g.offset_q*t->nb[0]);
        };

        // m first: the softmax may overwrite the logits
        ggml_build_forward_expand(gf, ggml_cpy(ctx0, intra.m, state_row(cache.m)));
        ggml_build_forward_expand(gf, ggml_cpy(ctx0, intra.l, state_row(cache.l)));
        ggml_build_forward_expand(gf, ggml_cpy(ctx0, intra.o,
                ggml_view_4d(ctx0, cache.o, d_v, g.n_q, n_head, g.n_chunks,
                    cache.o->nb[1], d_v*cache.o->nb[0], S*cache.o->nb[1], g.offset_q*cache.o->nb[1])));

        build_column_sums(graph, weights, g, il);
    }

    ggml_tensor * o = kv->intra->get(il).o;

    return ggml_view_2d(ctx0, o, d_v*n_head, step.n_tokens, o->nb[1], 0);
}

// phase 2: attention to the memory set, fused with phase 1
ggml_tensor * llm_graph_input_attn_h2o::build_inter(const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il) {
    ggml_context * ctx0 = graph.ctx0;

    const int64_t n_q    = step.n_tokens;
    const int64_t n_head = q->ne[1];
    const int64_t d_v    = hparams.n_embd_head_v(il);

    const auto & cache = kv->intra->get(il);

    if (step.n_memory == 0) {
        return ggml_view_2d(ctx0, cache.o, d_v*n_head, n_q, cache.o->nb[1], step.offset*cache.o->nb[1]);
    }

    const h2o_gather_indices indices = h2o_gather_build_indices(ctx0, *kv, il, step.n_memory);
    memories.push_back({ il, indices });

    ggml_tensor * k_memory = h2o_gather_build_k(ctx0, *kv, indices, il);
    ggml_tensor * v_memory = h2o_gather_build_v(ctx0, *kv, indices, il);

    ggml_tensor * kq = build_kq(graph, k_memory, ggml_cont(ctx0, ggml_permute(ctx0, q, 0, 2, 1, 3)));

    ggml_tensor * weights = nullptr;
    const h2o_softmax_state inter = h2o_softmax_state_build(ctx0, kq, kq_scale, v_memory, &weights);

    ggml_build_forward_expand(graph.gf, inter.m); // before the softmax, which may overwrite the logits
    build_column_sums(graph, weights, {}, il);

    const auto state_row = [&](ggml_tensor * t) {
        return ggml_view_3d(ctx0, t, 1, n_q, n_head, t->nb[0], t->nb[1], step.offset*t->nb[0]);
    };

    const h2o_softmax_state intra = {
        /*.m =*/ state_row(cache.m),
        /*.l =*/ state_row(cache.l),
        /*.o =*/ ggml_view_3d(ctx0, cache.o, d_v, n_q, n_head, cache.o->nb[1], d_v*cache.o->nb[0], step.offset*cache.o->nb[1]),
    };

    ggml_tensor * cur = ggml_permute(ctx0, h2o_softmax_state_fuse(ctx0, intra, inter).o, 0, 2, 1, 3);

    return ggml_cont_2d(ctx0, cur, d_v*n_head, n_q);
}

void llm_graph_input_attn_h2o::add_scores(h2o_state & state) const {
    const uint32_t S = state.config.chunk_size;

    std::vector<float> data;
    std::vector<float> sums;

    for (size_t i = 0; i < colsums.size(); ) {
        h2o_layer & layer = *state.layer(colsums[i].il);

        if (step.phase == h2o_step::INTER) {
            data.resize(ggml_nelements(colsums[i].t));
            ggml_backend_tensor_get(colsums[i].t, data.data(), 0, ggml_nbytes(colsums[i].t));
            state.add_memory_scores(layer, step.n_memory, data.data());
            i++;
            continue;
        }

        // the blocks of a run of chunks stand together, the last one has the most keys; added up first, a score is rounded once
        size_t end = i + 1;
        while (end < colsums.size() && colsums[end].il == layer.il && colsums[end].keys.pos_k == colsums[i].keys.pos_k) {
            end++;
        }
        const group & run = colsums[end - 1].keys;
        sums.assign((size_t) run.n_chunks*layer.n_head_kv*run.n_k, 0.0f);

        for (; i < end; ++i) {
            data.resize(ggml_nelements(colsums[i].t));
            ggml_backend_tensor_get(colsums[i].t, data.data(), 0, ggml_nbytes(colsums[i].t));

            const uint32_t n_k = colsums[i].keys.n_k;
            for (size_t j = 0; j < data.size(); ++j) {
                sums[j/n_k*run.n_k + j%n_k] += data[j];
            }
        }

        for (uint32_t c = 0; c < run.n_chunks; ++c) {
            state.add_chunk_scores(layer, run.pos_k + c*S, run.n_k, sums.data() + (size_t) c*layer.n_head_kv*run.n_k);
        }
    }
}
