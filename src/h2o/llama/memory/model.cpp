#include "h2o/llama/memory/model.h"

#include "h2o/config/refusal.h"
#include "h2o/llama/memory/key-mean.h"
#include "h2o/store/layout.h"

#include "llama-cparams.h"
#include "llama-h2o.h"
#include "llama-hparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include "ggml-cpp.h"

#include <algorithm>
#include <cinttypes>
#include <numeric>
#include <stdexcept>

uint32_t llama_h2o_n_learned_positions(const llama_model * model) {
    return model->pos_embd ? model->pos_embd->ne[1] : 0;
}

// the model, if H2O works with its kind of attention
static const llama_model & checked(const llama_model & model) {
    const auto & hparams = model.hparams;

    const char * reason = nullptr;

    if (!hparams.causal_attn) {
        reason = "has no causal attention";
    } else if (hparams.use_alibi || hparams.f_max_alibi_bias > 0.0f) {
        reason = "uses ALiBi position biases";
    } else if (model.arch == LLM_ARCH_T5) {
        reason = "uses relative position biases";
    }

    if (reason) {
        throw h2o_refusal(h2o_reason::MODEL,
                format("[h2o] H2O does not work with this model: %s %s. Switch H2O off for it",
                model.arch_name().c_str(), reason));
    }
    return model;
}

h2o_model_caches::h2o_model_caches(const llama_model & model, const llama_memory_params & params,
        const llama_cparams & cparams,
        const h2o_model_layers & layers)
    : side(checked(model), params, cparams, layers), model(model), config(cparams.h2o), offload(cparams.offload_kqv),
      key_means(model.hparams.n_layer_all) {
    const auto & hparams = model.hparams;

    if (config.positions == LLAMA_H2O_POSITIONS_CACHE &&
            config.memory_size() + config.chunk_size > hparams.n_ctx_train) {
        throw h2o_refusal(h2o_reason::POSITIONS,
                format("[h2o] positions cache needs a memory set and a chunk that are together at most the %u tokens "
                        "which this model "
                    "was trained for, got %" PRIu64 " and %u: make them smaller, or use positions text",
                            hparams.n_ctx_train, config.memory_size(), config.chunk_size));
    }
    if (hparams.is_mla() && config.has_cold_store()) {
        throw std::invalid_argument(format("[h2o] a cold store keeps K and V, but %s has multi-head latent attention "
                "(MLA), which keeps one row for both. "
                    "Leave it out", model.arch_name().c_str()));
    }
    if (!side.empty() && config.schedule == LLAMA_H2O_SCHEDULE_TWO_PHASE) {
        throw std::invalid_argument(format("[h2o] schedule two_phase computes each token twice, which layers with a "
                "sliding window or a recurrent "
                    "state do not allow: %s has such layers. Use single_pass", model.arch_name().c_str()));
    }
    for (uint32_t il = hparams.n_layer(); il < LLAMA_H2O_MAX_LAYERS; ++il) {
        if (config.is_dense(il)) {
            throw std::invalid_argument(format("[h2o] dense layers: there is no layer %u, this model has %u", il,
                    hparams.n_layer()));
        }
    }
    const auto has_text = [&](int32_t il) { // attends to the whole text
        return !hparams.is_swa(il) && layers.has_attention(il);
    };
    for (uint32_t il = 0; il < hparams.n_layer_all; ++il) {
        const int32_t source = layers.reuse ? layers.reuse(il) : -1;

        sources.push_back(source < 0 ? il : source);
        in_dense_cache.push_back(config.evict && config.is_dense(sources[il]) && hparams.n_head_kv(sources[il]) > 0 &&
                has_text(sources[il]));
    }

    const auto make_cache = [&](bool dense) {
        const uint32_t kv_size = cparams.n_ctx_seq;
        const uint32_t n_rows  = dense ? kv_size : h2o_layout(config, kv_size).n_rows();

        return std::make_unique<llama_kv_cache>(model, hparams, params.type_k, params.type_v, /*v_trans =*/ false,
                offload, /*unified =*/ false,
                n_rows, cparams.n_seq_max, /*n_pad =*/ 1, /*n_swa =*/ 0, LLAMA_SWA_TYPE_NONE, nullptr,
                [&](int32_t il) { return in_dense_cache[il] == dense && has_text(il); }, layers.reuse, nullptr);
    };
    cache = make_cache(false);
    if (std::count(in_dense_cache.begin(), in_dense_cache.end(), true) > 0) {
        dense_cache = make_cache(true);
    }
}

void h2o_model_caches::add_layers(const llama_kv_cache & cache, std::vector<h2o_kv_layer> & layers) const {
    const auto & hparams = model.hparams;
    const bool   is_mla  = hparams.is_mla();

    ggml_init_params params = { (4*cache.get_layer_ids().size() + 2)*ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    llama_kv_cache::slot_info slot = {};
    slot.resize(1);
    slot.idxs[0] = { 0 };

    const ggml_tensor * k_rot = cache.build_input_k_rot(ctx.get());
    const ggml_tensor * v_rot = cache.build_input_v_rot(ctx.get());

    int32_t index = std::count_if(layers.begin(), layers.end(),
            [](const h2o_kv_layer & layer) { return !layer.is_dense(); });

    for (const uint32_t il : cache.get_layer_ids()) {
        if (hparams.n_head_kv(il) == 0) {
            continue; // no attention
        }
        const auto rows = [&](ggml_tensor * view, uint32_t n_embd, const ggml_tensor * rot) -> h2o_kv_rows {
            return { view->view_src, 0, hparams.n_head_kv(il), n_embd, rot ? (uint32_t) rot->ne[0] : 0 };
        };
        ggml_tensor * k = cache.get_k(ctx.get(), il, 1, slot);

        layers.push_back({
            /*.il     =*/ (int32_t) il,
            /*.index  =*/ config.is_dense(il) ? -1 : index++,
            /*.n_head =*/ hparams.n_head(il),
            /*.device =*/ offload ? model.dev_layer(il) : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU),
            /*.k      =*/ rows(k, hparams.n_embd_head_k(il), is_mla ? nullptr : k_rot),
            /*.v      =*/ rows(is_mla ? k : cache.get_v(ctx.get(), il, 1, slot), hparams.n_embd_head_v(il), is_mla ?
                    nullptr : v_rot),
        });
    }
}

std::vector<h2o_kv_layer> h2o_model_caches::layers() {
    std::vector<h2o_kv_layer> res;
    add_layers(*cache, res);
    if (dense_cache) {
        add_layers(*dense_cache, res);
    }
    if (res.empty()) {
        throw h2o_refusal(h2o_reason::MODEL,
                format("[h2o] H2O does not work with this model: no layer of %s attends to the whole text. Switch "
                        "H2O off for it",
                    model.arch_name().c_str()));
    }
    if (std::all_of(res.begin(), res.end(), [](const h2o_kv_layer & layer) { return layer.is_dense(); })) {
        throw std::invalid_argument("[h2o] dense layers: no layer is left for H2O. Switch H2O off instead");
    }
    h2o_add_key_means(model, res, key_means);
    return res;
}

void h2o_model_caches::remove_cells(llama_seq_id seq_id, uint32_t n) {
    cache->seq_rm(seq_id, n, -1);
    if (dense_cache) {
        dense_cache->seq_rm(seq_id, n, -1);
    }
}

void h2o_add_slots(llama_kv_cache::slot_info & slots, llama_seq_id seq_id, uint32_t first, uint32_t n) {
    slots.s0 = slots.strm.empty() ? seq_id : std::min<uint32_t>(slots.s0, seq_id);
    slots.s1 = slots.strm.empty() ? seq_id : std::max<uint32_t>(slots.s1, seq_id);
    slots.strm.push_back(seq_id);
    slots.idxs.emplace_back(n);
    std::iota(slots.idxs.back().begin(), slots.idxs.back().end(), first);
}

void h2o_model_caches::fill_cells(llama_seq_id seq_id, uint32_t first, uint32_t end) {
    auto * full = dense_cache ? dense_cache.get() : config.evict ? nullptr : cache.get();
    if (!full || first >= end) {
        return;
    }
    const uint32_t n = end - first;

    // by a batch that is not computed
    std::vector<llama_pos>      pos(n);
    std::vector<int32_t>        n_seq_id(n, 1);
    std::vector<llama_seq_id *> seq_ids(n, &seq_id);
    std::iota(pos.begin(), pos.end(), first);

    llama_ubatch ubatch = {};
    ubatch.n_tokens = n;
    ubatch.n_pos    = 1;
    ubatch.pos      = pos.data();
    ubatch.n_seq_id = n_seq_id.data();
    ubatch.seq_id   = seq_ids.data();

    llama_kv_cache::slot_info slots = {};
    h2o_add_slots(slots, seq_id, first, n);
    full->apply_ubatch(slots, ubatch);
}
