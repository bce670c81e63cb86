#include "h2o-stream.h"

#include "llama-hparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include "ggml-cpp.h"
#include "ggml-h2o-attn.h"
#include "ggml-h2o-index.h"

#include <stdexcept>
#include <utility>

void h2o_stream::check_model(const llama_model & model) {
    const auto & hparams = model.hparams;

    const char * reason = nullptr;

    if (hparams.is_mla()) {
        reason = "uses multi-head latent attention (MLA)";
    } else if (hparams.swa_type != LLAMA_SWA_TYPE_NONE) {
        reason = "uses sliding-window attention";
    } else if (llama_model_is_recurrent(&model) || llama_model_is_hybrid(&model)) {
        reason = "is recurrent";
    } else if (!hparams.causal_attn) {
        reason = "has no causal attention";
    } else if (hparams.use_alibi || hparams.f_max_alibi_bias > 0.0f) {
        reason = "uses ALiBi position biases";
    } else if (model.arch == LLM_ARCH_T5) {
        reason = "uses relative position biases";
    } else if (hparams.attn_soft_cap) {
        reason = "caps its attention logits";
    } else if (model.arch == LLM_ARCH_GROK) {
        reason = "scales its attention logits in its own way";
    }

    if (reason) {
        throw std::runtime_error(format("[h2o] H2O does not work with this model: %s %s. Switch H2O off for it", model.arch_name().c_str(), reason));
    }
}

// the layers that have memory sets
static std::vector<h2o_sequence::layer_dims> h2o_layer_dims(const llama_model & model, const std::vector<uint32_t> & layer_ids,
        const h2o_config & config, bool offload) {
    const auto & hparams = model.hparams;

    for (uint32_t il = hparams.n_layer(); il < LLAMA_H2O_MAX_LAYERS; ++il) {
        if (config.is_dense(il)) {
            throw std::invalid_argument(format("[h2o] dense layers: there is no layer %u, this model has %u", il, hparams.n_layer()));
        }
    }

    std::vector<h2o_sequence::layer_dims> res;
    for (const uint32_t il : layer_ids) {
        // a layer without KV heads has no attention
        if (hparams.n_head_kv(il) > 0 && !config.is_dense(il)) {
            res.push_back({ (int32_t) il, hparams.n_head(il), hparams.n_head_kv(il), h2o_layer_device(model, il, offload) });
        }
    }
    if (res.empty()) {
        throw std::invalid_argument("[h2o] dense layers: no layer is left for H2O. Switch H2O off instead");
    }
    return res;
}

h2o_stream::h2o_stream(
        const llama_model & model,
                ggml_type   type_k,
                ggml_type   type_v,
                     bool   offload,
                 uint32_t   kv_size,
                 uint32_t   n_batch,
       const h2o_config   & config,
    const llama_memory_i::layer_filter_cb & filter)
    : model(model),
      cache(std::make_unique<llama_kv_cache>(model, model.hparams, type_k, type_v, /*v_trans =*/ false, offload, /*unified =*/ true, kv_size,
            /*n_seq_max =*/ 1, /*n_pad =*/ 1, /*n_swa =*/ 0, LLAMA_SWA_TYPE_NONE, nullptr, filter, nullptr, nullptr)),
      sequence(config, std::make_unique<h2o_layout_full>(kv_size), h2o_layer_dims(model, cache->get_layer_ids(), config, offload)),
      offload(offload) {
    if (n_batch > 0 && config.schedule == LLAMA_H2O_SCHEDULE_TWO_PHASE) {
        intra = std::make_unique<h2o_intra>(model, cache->get_layer_ids(), n_batch, offload);
    }

    if (n_batch > 0 && config.has_key_index()) {
        std::vector<int32_t> layer_ids;
        for (const auto & layer : sequence.layers) {
            layer_ids.push_back(layer.il);
        }
        key_index = std::make_unique<h2o_key_index>(model, layer_ids, kv_size, offload);
    }

    sequence.read_keys = [this](int32_t il, uint32_t first, uint32_t n) {
        const h2o_kv_rows rows = k_rows(il);
        const auto        it   = ropes.find(il);
        const h2o_rope  * rope = it == ropes.end() ? nullptr : it->second.get();

        return h2o_chunk_keys { n, rows.n_head, rows.n_embd, [=, k = std::vector<float>()](uint32_t i, uint32_t n) mutable {
            rows.get_in_order(first + i, first + i + n, k);

            ggml_h2o_keys res = { k.data(), n, rows.n_head, rows.n_embd, nullptr, nullptr, 0, false };
            if (rope) {
                rope->set_angles(res, i);
            }
            return res;
        } };
    };
    reset_stats();

    const auto & stats = sequence.stats;
    LLAMA_LOG_INFO("%s: H2O: S = %u, L = %u, H = %u, A = %u, scorer %s, pooling %u, scores %.2f MiB, memory sets %.2f MiB, intra state %.2f MiB, index of keys %.2f MiB\n", __func__,
            config.chunk_size, config.local_window, config.heavy_budget, config.sink_tokens, config.scorer->name(), config.pooling,
            stats.bytes_scores/1024.0/1024.0, stats.bytes_memory/1024.0/1024.0, stats.bytes_intra/1024.0/1024.0, stats.bytes_index/1024.0/1024.0);
}

llama_kv_cache::slot_info h2o_stream::slots(uint32_t pos, uint32_t n_tokens) const {
    llama_kv_cache::slot_info res;
    res.s0 = 0;
    res.s1 = 0;
    res.resize(1);
    res.strm[0] = 0;
    for (uint32_t i = 0; i < n_tokens; ++i) {
        res.idxs[0].push_back(sequence.layout->row_of(pos + i));
    }
    return res;
}

void h2o_stream::clear(bool data) {
    cache->clear(data);
    sequence.clear();
    reset_stats();
}

// the sizes stay, the counts and times begin again
void h2o_stream::reset_stats() {
    auto & stats = sequence.stats;
    stats = {};

    for (const auto & [buft, size] : cache->memory_breakdown()) {
        stats.bytes_kv += size;
    }
    for (const auto & layer : sequence.layers) {
        stats.bytes_scores += ggml_nbytes(layer.scores);
        stats.bytes_memory += ggml_nbytes(layer.rows);
    }
    stats.bytes_intra = intra ? intra->n_bytes() : 0;
    if (key_index) {
        for (const auto & [buft, size] : key_index->sizes()) {
            stats.bytes_index += size;
        }
    }

    profile = {};
}

void h2o_stream::rollback() {
    sequence.rollback();
    cache->seq_rm(0, sequence.n_tokens(), -1);
}

bool h2o_stream::rewind(uint32_t pos) {
    return sequence.rewind(pos) && cache->seq_rm(0, pos, -1);
}

void h2o_stream::learn_rope(int32_t il, const ggml_tensor * k) {
    auto * layer = sequence.layer(il);
    if (!layer || layer->scorer->uses_attention() || ropes.count(il)) {
        return;
    }

    if (h2o_find_rope(k) == H2O_ROPE_HIDDEN) {
        layer->scorer = &h2o_fallback_scorer();

        LLAMA_LOG_WARN("%s: layer %d changes its keys after RoPE, which scorer %s cannot take back: %s scores them instead\n",
                __func__, il, sequence.config.scorer->name(), layer->scorer->name());
        return;
    }

    for (const auto & [il_other, rope] : ropes) {
        if (rope->is_of(k)) {
            ropes[il] = rope;
            return;
        }
    }
    ropes[il] = std::make_shared<h2o_rope>(k, sequence.config.chunk_size);
}

ggml_backend_dev_t h2o_stream::device(int32_t il) const {
    return h2o_layer_device(model, il, offload);
}

bool h2o_stream::has_fused_attention(int32_t il) const {
    ggml_init_params params = { 16*ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    const auto & hparams = model.hparams;

    ggml_tensor * q    = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, hparams.n_embd_head_k(il), 1, hparams.n_head(il));
    ggml_tensor * rows = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, 1, hparams.n_head_kv(il));

    const ggml_h2o_attn_result res = ggml_h2o_attn(ctx.get(), q, keys(ctx.get(), il), values(ctx.get(), il), rows,
            nullptr, nullptr, nullptr, nullptr, nullptr, 1, 0, 1.0f, false);

    return ggml_backend_dev_supports_op(device(il), res.o->view_src);
}

bool h2o_stream::has_fused_retrieval(int32_t il) const {
    ggml_init_params params = { 4*ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    ggml_tensor * q = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, model.hparams.n_embd_head_k(il), 1, model.hparams.n_head(il));

    return has_fused_attention(il) && ggml_backend_dev_supports_op(device(il), ggml_h2o_top_keys(ctx.get(), q, key_index->keys(ctx.get(), il, 1), nullptr, 1));
}

std::map<ggml_backend_buffer_type_t, size_t> h2o_stream::memory_breakdown() const {
    auto res = cache->memory_breakdown();
    if (key_index) {
        for (const auto & [buft, size] : key_index->sizes()) {
            res[buft] += size;
        }
    }
    return res;
}

ggml_tensor * h2o_stream::keys(ggml_context * ctx, int32_t il) const {
    return ggml_permute(ctx, cache->get_k(ctx, il, sequence.layout->n_rows(), slots(0, 1)), 0, 2, 1, 3);
}

ggml_tensor * h2o_stream::values(ggml_context * ctx, int32_t il) const {
    return ggml_permute(ctx, cache->get_v(ctx, il, sequence.layout->n_rows(), slots(0, 1)), 0, 2, 1, 3);
}

ggml_tensor * h2o_stream::rows(ggml_context * ctx, int32_t il, uint32_t n_memory, uint32_t n_chunk) const {
    ggml_tensor * t = sequence.layer(il)->rows;

    return ggml_view_2d(ctx, t, n_memory + n_chunk, t->ne[1], t->nb[1], (sequence.config.memory_size() - n_memory)*t->nb[0]);
}

h2o_kv_rows h2o_stream::k_rows(int32_t il) const {
    ggml_init_params params = { 4*ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    const ggml_tensor * rot = cache->build_input_k_rot(ctx.get());

    return { keys(ctx.get(), il)->view_src, model.hparams.n_head_kv(il), model.hparams.n_embd_head_k(il), rot ? (uint32_t) rot->ne[0] : 0 };
}

h2o_kv_rows h2o_stream::v_rows(int32_t il) const {
    ggml_init_params params = { 4*ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    const ggml_tensor * rot = cache->build_input_v_rot(ctx.get());

    return { values(ctx.get(), il)->view_src, model.hparams.n_head_kv(il), model.hparams.n_embd_head_v(il), rot ? (uint32_t) rot->ne[0] : 0 };
}
