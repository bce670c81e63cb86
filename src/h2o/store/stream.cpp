#include "h2o/store/stream.h"

#include "llama-hparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include "ggml-cpp.h"
#include "ggml/attention/attention.h"
#include "ggml/top-keys/top-keys.h"

#include <algorithm>
#include <numeric>
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

static std::shared_ptr<llama_kv_cache> make_cache(const llama_model & model, ggml_type type_k, ggml_type type_v, bool offload,
        uint32_t n_rows, uint32_t n_seq_max, const llama_memory_i::layer_filter_cb & filter) {
    return std::make_shared<llama_kv_cache>(model, model.hparams, type_k, type_v, /*v_trans =*/ false, offload, /*unified =*/ false, n_rows,
            n_seq_max, /*n_pad =*/ 1, /*n_swa =*/ 0, LLAMA_SWA_TYPE_NONE, nullptr, filter, nullptr, nullptr);
}

// of the layers [0, n_layer_all): those that keep every position beside a compact cache
static std::vector<bool> find_dense_layers(const llama_model & model, const h2o_config & config) {
    std::vector<bool> res;
    for (uint32_t il = 0; il < model.hparams.n_layer_all; ++il) {
        res.push_back(config.evict && config.is_dense(il) && model.hparams.n_head_kv(il) > 0);
    }
    return res;
}

h2o_stream::h2o_stream(
        const llama_model & model,
                ggml_type   type_k,
                ggml_type   type_v,
                     bool   offload,
                 uint32_t   kv_size,
                 uint32_t   n_seq_max,
                 uint32_t   n_batch,
       const h2o_config   & config,
    const llama_memory_i::layer_filter_cb & filter)
    : model(model), id(0), in_dense_cache(find_dense_layers(model, config)),
      cache(make_cache(model, type_k, type_v, offload, h2o_layout(config, kv_size).n_rows(), n_seq_max,
            [&](int32_t il) { return !in_dense_cache[il] && (!filter || filter(il)); })),
      dense_cache(std::count(in_dense_cache.begin(), in_dense_cache.end(), true) == 0 ? nullptr : make_cache(model, type_k, type_v, offload, kv_size, n_seq_max,
            [&](int32_t il) { return in_dense_cache[il] && (!filter || filter(il)); })),
      sequence(config, kv_size, h2o_layer_dims(model, cache->get_layer_ids(), config, offload)),
      offload(offload), cold_place(n_batch > 0 && config.has_cold_store() ? h2o_make_cold_place(config.cold_store) : nullptr),
      cold_codec(make_cold_codec()) {
    if (n_batch > 0 && config.schedule == LLAMA_H2O_SCHEDULE_TWO_PHASE) {
        intra = std::make_shared<h2o_intra>(model, cache->get_layer_ids(), n_batch, offload);
    }

    if (n_batch > 0 && config.has_key_index()) {
        std::vector<int32_t> layer_ids;
        for (const auto & layer : sequence.layers) {
            layer_ids.push_back(layer.il);
        }
        key_index = std::make_shared<h2o_key_index>(model, layer_ids, kv_size, n_seq_max, offload);
    }

    init();

    const auto & stats = sequence.stats;
    LLAMA_LOG_INFO("%s: H2O: S = %u, L = %u, H = %u, A = %u, scorer %s, scores %.2f MiB, memory sets %.2f MiB, intra state %.2f MiB, index of keys %.2f MiB\n", __func__,
            config.chunk_size, config.local_window, config.heavy_budget, config.sink_tokens, config.scorer->name(),
            stats.bytes_scores/1024.0/1024.0, stats.bytes_memory/1024.0/1024.0, stats.bytes_intra/1024.0/1024.0, stats.bytes_index/1024.0/1024.0);
}

h2o_stream::h2o_stream(const h2o_stream & first, llama_seq_id id)
    : model(first.model), id(id), in_dense_cache(first.in_dense_cache), cache(first.cache), dense_cache(first.dense_cache),
      sequence(first.sequence.config, first.sequence.layout.kv_size, h2o_layer_dims(model, cache->get_layer_ids(), first.sequence.config, first.offload)),
      intra(first.intra), key_index(first.key_index), offload(first.offload), cold_place(first.cold_place), cold_codec(first.cold_codec) {
    init();
}

void h2o_stream::init() {
    sequence.k_rows = [this](int32_t il) { return k_rows(il); };
    sequence.v_rows = [this](int32_t il) { return v_rows(il); };

    bytes_per_row       = row_bytes(cache.get());
    bytes_per_dense_row = row_bytes(dense_cache.get());

    if (cold_place) {
        std::vector<std::array<size_t, 2>> row_sizes;
        for (const auto & layer : sequence.layers) {
            const auto kv = storage(layer.il);
            row_sizes.push_back({ kv[0]->nb[1], kv[1]->nb[1] });
        }
        sequence.cold = std::make_unique<h2o_cold_store>(cold_place, cold_codec, sequence.config.chunk_size, std::move(row_sizes));
        far           = std::make_unique<h2o_far_rows>(*sequence.cold);
    }
    sequence.release_rows(0);
    reset_stats();
}

llama_kv_cache::slot_info h2o_stream::slots(uint32_t pos, uint32_t n_tokens) const {
    llama_kv_cache::slot_info res;
    res.s0 = id;
    res.s1 = id;
    res.resize(1);
    res.strm[0] = id;
    for (uint32_t i = 0; i < n_tokens; ++i) {
        res.idxs[0].push_back(sequence.layout.row_of(pos + i));
    }
    return res;
}

llama_kv_cache::slot_info h2o_stream::dense_slots(uint32_t pos, uint32_t n_tokens) const {
    auto res = slots(pos, n_tokens);
    std::iota(res.idxs[0].begin(), res.idxs[0].end(), pos);
    return res;
}

void h2o_stream::clear(bool data) {
    remove_cells(0);
    for (const auto * c : { cache.get(), dense_cache.get() }) {
        if (data && c) {
            for (const uint32_t il : c->get_layer_ids()) {
                for (ggml_tensor * t : storage(il)) {
                    ggml_backend_tensor_memset(t, 0, id*t->nb[2], t->nb[2]);
                }
            }
        }
    }
    sequence.clear();
    sequence.release_rows(0);
    reset_stats();
}

// the sizes stay, the counts and times begin again
void h2o_stream::reset_stats() {
    auto & stats = sequence.stats;
    stats = {};

    for (const auto * c : { cache.get(), dense_cache.get() }) {
        if (c) {
            for (const auto & [buft, size] : c->memory_breakdown()) {
                stats.bytes_kv += size/c->get_n_stream();
            }
        }
    }
    stats.bytes_token = bytes_per_row + bytes_per_dense_row;
    for (const auto & layer : sequence.layers) {
        stats.bytes_scores += ggml_nbytes(layer.scores) + (layer.pending ? ggml_nbytes(layer.pending) : 0);
        stats.bytes_memory += ggml_nbytes(layer.rows);
    }
    stats.bytes_intra = intra ? intra->n_bytes() : 0;
    if (key_index) {
        for (const auto & [buft, size] : key_index->sizes()) {
            stats.bytes_index += size/cache->get_n_stream();
        }
    }

    profile = {};
}

void h2o_stream::rollback() {
    sequence.rollback();
    remove_cells(sequence.n_tokens());
}

bool h2o_stream::rewind(uint32_t pos) {
    if (!sequence.rewind(pos)) {
        return false;
    }
    remove_cells(pos);
    return true;
}

void h2o_stream::remove_cells(uint32_t pos) {
    cache->seq_rm(id, pos, -1);
    if (dense_cache) {
        dense_cache->seq_rm(id, pos, -1);
    }
}

ggml_backend_dev_t h2o_stream::device(int32_t il) const {
    return h2o_layer_device(model, il, offload);
}

bool h2o_stream::has_fused_attention(int32_t il) const {
    ggml_context_ptr ctx { ggml_init({ 16*ggml_tensor_overhead(), nullptr, true }) };

    ggml_tensor * q = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, model.hparams.n_embd_head_k(il), 1, model.hparams.n_head(il));

    ggml_h2o_attn_params params = {};
    params.n_k = 1;

    const ggml_h2o_attn_result res = ggml_h2o_attn(ctx.get(), q, keys(ctx.get(), il), values(ctx.get(), il), &params);

    return ggml_backend_dev_supports_op(device(il), res.o->view_src);
}

bool h2o_stream::has_flash_attention(int32_t il) const {
    ggml_init_params params = { 16*ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    const auto & hparams = model.hparams;

    ggml_tensor * k = keys  (ctx.get(), il);
    ggml_tensor * v = values(ctx.get(), il);
    if (k->type == GGML_TYPE_F32 || v->type == GGML_TYPE_F32) {
        return false; // it would round them
    }

    ggml_tensor * q    = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, hparams.n_embd_head_k(il), 1, hparams.n_head(il));
    ggml_tensor * mask = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F16, k->ne[1], 1);

    return ggml_backend_dev_supports_op(device(il), ggml_flash_attn_ext(ctx.get(), q, k, v, mask, 1.0f, 0.0f, 0.0f));
}

bool h2o_stream::has_fused_retrieval(int32_t il) const {
    ggml_init_params params = { 4*ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    ggml_tensor * q = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, model.hparams.n_embd_head_k(il), 1, model.hparams.n_head(il));

    return has_fused_attention(il) && ggml_backend_dev_supports_op(device(il), ggml_h2o_top_keys(ctx.get(), q, key_index->keys(ctx.get(), il, id, 1), nullptr, 1));
}

std::map<ggml_backend_buffer_type_t, size_t> h2o_stream::memory_breakdown() const {
    auto res = cache->memory_breakdown();
    if (dense_cache) {
        for (const auto & [buft, size] : dense_cache->memory_breakdown()) {
            res[buft] += size;
        }
    }
    if (key_index) {
        for (const auto & [buft, size] : key_index->sizes()) {
            res[buft] += size;
        }
    }
    return res;
}

ggml_tensor * h2o_stream::keys(ggml_context * ctx, int32_t il) const {
    ggml_tensor * res = in_dense_cache[il] ?
        dense_cache->get_k(ctx, il, sequence.layout.n_positions(), dense_slots(0, 1)) :
        cache      ->get_k(ctx, il, sequence.layout.n_rows(),      slots      (0, 1));

    return ggml_permute(ctx, res, 0, 2, 1, 3);
}

ggml_tensor * h2o_stream::values(ggml_context * ctx, int32_t il) const {
    ggml_tensor * res = in_dense_cache[il] ?
        dense_cache->get_v(ctx, il, sequence.layout.n_positions(), dense_slots(0, 1)) :
        cache      ->get_v(ctx, il, sequence.layout.n_rows(),      slots      (0, 1));

    return ggml_permute(ctx, res, 0, 2, 1, 3);
}

ggml_tensor * h2o_stream::rows(ggml_context * ctx, int32_t il, uint32_t n_memory, uint32_t n_chunk) const {
    ggml_tensor * t = sequence.layer(il)->rows;

    return ggml_view_2d(ctx, t, n_memory + n_chunk, t->ne[1], t->nb[1], (sequence.config.memory_size() - n_memory)*t->nb[0]);
}
