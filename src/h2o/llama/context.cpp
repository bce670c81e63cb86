#include "h2o/llama/context.h"

#include "h2o/config/env.h"
#include "h2o/config/refusal.h"
#include "h2o/store/cold/place.h"
#include "h2o/store/cold/store.h"

#include "llama-cparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include "ggml-cpp.h"
#include "ggml/attention/attention.h"
#include "ggml/top-keys/top-keys.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <utility>

static std::vector<h2o_layer> sequence_layers(const h2o_kv_store & store) {
    std::vector<h2o_layer> res;
    for (const auto & layer : store.layers()) {
        if (!layer.is_dense()) {
            res.emplace_back(layer.index, layer.il, layer.n_head, layer.k.n_head);
        }
    }
    return res;
}

llama_h2o_kv::llama_h2o_kv(h2o_context & context, llama_seq_id id)
    : context(context), id(id), sequence(context.config, sequence_layers(context.store)) {
}

h2o_context::h2o_context(const llama_model & model, const llama_memory_params & params, const llama_cparams & cparams,
        const h2o_model_layers & layers)
    : config(cparams.h2o), model(model), n_batch(cparams.n_batch), n_ubatch(cparams.n_ubatch),
      caches(model, params, cparams, layers),
      store(config, cparams.n_ctx_seq, cparams.n_seq_max, caches.layers(),
              { config, model.hparams.n_ctx_train, caches.side.window || config.has_dense_layers() },
              n_batch > 0 && config.has_cold_store() ? h2o_make_cold_place(config.cold_store) : nullptr),
      env { config, store, nullptr, nullptr, {}, {} } {
    const uint32_t n_seq_max = cparams.n_seq_max;

    if (n_batch > 0 && config.has_key_index()) {
        index = std::make_unique<h2o_key_index>(store.layers(), store.layout.kv_size, n_seq_max);
    }
    if (n_batch > 0 && config.schedule == LLAMA_H2O_SCHEDULE_TWO_PHASE) {
        intra = std::make_unique<h2o_intra>(store.layers(), n_batch);
    }
    env.index = index.get();
    env.intra = intra.get();
    for (const auto & layer : store.layers()) {
        env.kinds.resize(std::max<size_t>(env.kinds.size(), layer.il + 1));
        env.upstream_decodes.resize(env.kinds.size());

        const auto kind = env.kinds[layer.il] = attention_kind(layer, cparams.flash_attn);
        // upstream's kernel is faster on a GPU; a device behind RPC may be a CPU
        env.upstream_decodes[layer.il] = kind != H2O_ATTENTION_FUSED ||
                (std::string_view(ggml_backend_reg_name(ggml_backend_dev_backend_reg(layer.device))) == "CUDA" &&
                        has_flash_attention(layer));
    }
    if (config.has_key_index() || config.has_cold_store()) {
        check_retrieval();
    }

    for (uint32_t id = 0; id < n_seq_max; ++id) {
        seqs.push_back(std::make_unique<llama_h2o_kv>(*this, id));
        store.release(id, 0);
    }

    const auto stats = this->stats(*seqs[0]);
    char desc[512];
    llama_h2o_params_desc(&config, desc, sizeof(desc));
    LLAMA_LOG_INFO("%s: H2O: %s; intra state %.2f MiB, index of keys %.2f MiB\n", __func__, desc,
            stats.bytes_intra/1024.0/1024.0, stats.bytes_index/1024.0/1024.0);
}

h2o_attention_kind h2o_context::attention_kind(const h2o_kv_layer & layer, bool flash_attention) const {
    ggml_init_params params = { 16*ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    ggml_tensor * k    = store.view(ctx.get(), layer, H2O_K, 0);
    ggml_tensor * v    = store.view(ctx.get(), layer, H2O_V, 0);
    ggml_tensor * q    = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, layer.k.n_embd, 1, layer.n_head);

    ggml_h2o_attn_params op = {};
    op.n_k = 1;

    const ggml_h2o_attn_result res = ggml_h2o_attn(ctx.get(), q, k, v, &op);

    if (flash_attention && !h2o_env("H2O_NO_FUSED_ATTENTION") &&
            ggml_backend_dev_supports_op(layer.device, res.o->view_src)) {
        return H2O_ATTENTION_FUSED;
    }
    // rounds F32
    if (!flash_attention || !store.layout.is_compact || k->type == GGML_TYPE_F32 || v->type == GGML_TYPE_F32) {
        return H2O_ATTENTION_COMPOSED;
    }
    return has_flash_attention(layer) ? H2O_ATTENTION_FLASH : H2O_ATTENTION_COMPOSED;
}

bool h2o_context::has_flash_attention(const h2o_kv_layer & layer) const {
    ggml_init_params params = { 16*ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    ggml_tensor * k    = store.view(ctx.get(), layer, H2O_K, 0);
    ggml_tensor * v    = store.view(ctx.get(), layer, H2O_V, 0);
    ggml_tensor * q    = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, layer.k.n_embd, 1, layer.n_head);
    ggml_tensor * mask = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F16, k->ne[1], 1);

    return ggml_backend_dev_supports_op(layer.device, ggml_flash_attn_ext(ctx.get(), q, k, v, mask, 1.0f, 0.0f, 0.0f));
}

void h2o_context::check_retrieval() const {
    for (const auto & layer : store.layers()) {
        bool ok = layer.is_dense() || env.kinds[layer.il] == H2O_ATTENTION_FUSED;
        if (ok && index && !layer.is_dense()) {
            ggml_init_params params = { 4*ggml_tensor_overhead(), nullptr, true };
            ggml_context_ptr ctx { ggml_init(params) };

            ggml_tensor * q = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, layer.k.n_embd, 1, layer.n_head);

            ok = ggml_backend_dev_supports_op(layer.device,
                    ggml_h2o_top_keys(ctx.get(), q, index->keys(ctx.get(), layer, 0, 1), nullptr, 1, 1, 0));
        }
        if (!ok) {
            throw h2o_refusal(index ? h2o_reason::RETRIEVAL : h2o_reason::MODEL,
                    format("[h2o] %s needs attention as one operator, which layer %d does not have. Leave flash "
                            "attention "
                        "on, H2O_NO_FUSED_ATTENTION unset and all layers on the CPU, or use %s", index ?
                                "retrieval index" : "a cold store",
                        layer.il, index ? "retrieval ngrams" : "none"));
        }
    }
}

llama_h2o_kv * h2o_context::sequence(llama_seq_id seq_id) const {
    return seq_id >= 0 && (size_t) seq_id < seqs.size() ? seqs[seq_id].get() : nullptr;
}

llama_memory_context_ptr h2o_context::init_update(llama_context * lctx, bool optimize) {
    return caches.cache->init_update(lctx, optimize); // nothing to do
}

// Rows are written before they are read, so they are not cleared.
void h2o_context::clear(bool data) {
    GGML_UNUSED(data);
    for (auto & kv : seqs) {
        clear(*kv);
    }
}

void h2o_context::clear(llama_h2o_kv & kv) {
    remove_cells(kv.id, 0);
    caches.side.clear(kv.id);
    kv.sequence.clear();
    store.go_back(kv.id, kv.state(), {}, backends);
    store.release(kv.id, 0);
    kv.stats   = {};
    kv.profile = {};
}

void h2o_context::go_back(llama_h2o_kv & kv, uint32_t pos, const std::optional<h2o_checkpoint> & checkpoint,
        const std::optional<h2o_row_copies> & rows, bool moves_keys) {
    if (checkpoint) {
        kv.sequence.restore(*checkpoint);
    } else {
        kv.sequence.rewind(pos);
    }
    store.go_back(kv.id, kv.state(), rows, moves_keys ? backends : std::vector<ggml_backend_t>());
    remove_cells(kv.id, pos);
}

void h2o_context::remove_cells(llama_seq_id seq_id, uint32_t n) {
    caches.cache->seq_rm(seq_id, n, -1);
    if (caches.dense_cache) {
        caches.dense_cache->seq_rm(seq_id, n, -1);
    }
}

void h2o_context::fill_cells(llama_seq_id seq_id, uint32_t n) {
    auto * full = caches.dense_cache ? caches.dense_cache.get() : store.layout.is_compact ? nullptr :
            caches.cache.get();
    if (!full || n == 0) {
        return;
    }

    // by a batch that is not computed
    std::vector<llama_pos>      pos(n);
    std::vector<int32_t>        n_seq_id(n, 1);
    std::vector<llama_seq_id *> seq_ids(n, &seq_id);
    std::iota(pos.begin(), pos.end(), 0);

    llama_ubatch ubatch = {};
    ubatch.n_tokens = n;
    ubatch.n_pos    = 1;
    ubatch.pos      = pos.data();
    ubatch.n_seq_id = n_seq_id.data();
    ubatch.seq_id   = seq_ids.data();
    full->apply_ubatch(dense_slots(seq_id, 0, n), ubatch);
}

llama_kv_cache::slot_info h2o_context::slots(llama_seq_id seq_id, uint32_t pos, uint32_t n_tokens) const {
    llama_kv_cache::slot_info res;
    res.s0 = seq_id;
    res.s1 = seq_id;
    res.resize(1);
    res.strm[0] = seq_id;
    for (uint32_t i = 0; i < n_tokens; ++i) {
        res.idxs[0].push_back(store.layout.row_of(pos + i));
    }
    return res;
}

llama_kv_cache::slot_info h2o_context::dense_slots(llama_seq_id seq_id, uint32_t pos, uint32_t n_tokens) const {
    auto res = slots(seq_id, pos, n_tokens);
    std::iota(res.idxs[0].begin(), res.idxs[0].end(), pos);
    return res;
}

std::map<ggml_backend_buffer_type_t, size_t> h2o_context::memory_breakdown() const {
    auto res = caches.cache->memory_breakdown();
    if (caches.dense_cache) {
        for (const auto & [buft, size] : caches.dense_cache->memory_breakdown()) {
            res[buft] += size;
        }
    }
    for (const auto & [buft, size] : caches.side.memory_breakdown()) {
        res[buft] += size;
    }
    if (index) {
        for (const auto & [buft, size] : index->sizes()) {
            res[buft] += size;
        }
    }
    return res;
}

bool h2o_context::seq_rm(llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    bool res = true;
    for (auto & kv : seqs) {
        if (seq_id < 0 || seq_id == kv->id) {
            res = remove(*kv, p0, p1) && res;
        }
    }
    return res;
}

bool h2o_context::can_rewind(const llama_h2o_kv & kv, uint32_t pos) const {
    return kv.sequence.can_rewind(pos) && (caches.side.can_rewind(kv.id, pos) || kv.sequence.side_of(pos));
}

uint32_t h2o_context::rewind_step(const llama_h2o_kv & kv) const {
    return config.evict || !caches.side.empty() ? 0 : kv.sequence.rewind_step();
}

uint32_t h2o_context::rewind_limit(const llama_h2o_kv & kv) const {
    if (caches.side.empty()) {
        return kv.sequence.rewind_limit();
    }
    uint32_t pos = kv.state().n_tokens;
    while (pos > kv.sequence.rewind_limit() && caches.side.can_rewind(kv.id, pos - 1)) {
        pos--;
    }
    return pos;
}

bool h2o_context::remove(llama_h2o_kv & kv, llama_pos p0, llama_pos p1) {
    try {
        const llama_pos n_tokens = kv.state().n_tokens;

        if (p0 >= n_tokens) {
            return true;
        }
        if (p1 >= 0 && p1 < n_tokens) {
            LLAMA_LOG_ERROR("%s: H2O can only remove the end of a sequence, not positions [%d, %d) of %d\n", __func__,
                    p0, p1, n_tokens);
            return false;
        }
        if (p0 <= 0) {
            clear(kv);
            return true;
        }
        if (!can_rewind(kv, p0)) {
            LLAMA_LOG_ERROR("%s: H2O can remove positions from %u on, not from %d\n", __func__, rewind_limit(kv), p0);
            return false;
        }
        const auto checkpoint = kv.sequence.checkpoint_of(p0);
        const auto rows       = checkpoint ? store.read_moved(kv.id, *checkpoint) : std::nullopt;

        if (caches.side.can_rewind(kv.id, p0)) {
            caches.side.rewind(kv.id, p0);
        } else {
            caches.side.load(kv.id, *kv.sequence.side_of(p0));
        }
        go_back(kv, p0, checkpoint, rows, /*moves_keys =*/ true);
        return true;
    } catch (const std::exception & e) { // a device or a file that cannot be read
        LLAMA_LOG_ERROR("%s: %s\n", __func__, e.what());
        return false;
    }
}

void h2o_context::seq_cp(llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1) {
    const auto * src = sequence(seq_id_src);
    auto       * dst = sequence(seq_id_dst);

    const char * reason = nullptr;
    if (!src || !dst) {
        reason = "there is no such sequence";
    } else if (src == dst) {
        return;
    } else if (p0 > 0 || (p1 >= 0 && p1 < (llama_pos) src->state().n_tokens)) {
        reason = "only a whole sequence can be copied";
    } else if (dst->state().n_tokens > 0) {
        reason = "the sequence to copy to must be empty: remove what it holds first";
    }
    if (reason) {
        LLAMA_LOG_ERROR("%s: H2O, sequence %d to %d: %s\n", __func__, seq_id_src, seq_id_dst, reason);
        return;
    }
    if (src->state().n_tokens == 0) {
        return;
    }

    try {
        store.copy(src->id, dst->id, src->state());
        if (index) {
            index->copy(src->id, dst->id, src->state().n_tokens);
        }
        fill_cells(dst->id, src->state().n_tokens);
        caches.side.copy(src->id, dst->id);
        dst->sequence.copy_from(src->sequence);
    } catch (const std::exception & e) { // a device that cannot be read
        LLAMA_LOG_ERROR("%s: %s\n", __func__, e.what());
        clear(*dst);
    }
}

void h2o_context::seq_keep(llama_seq_id seq_id) {
    for (auto & kv : seqs) {
        if (kv->id != seq_id) {
            clear(*kv);
        }
    }
}

void h2o_context::seq_add(llama_seq_id seq_id, llama_pos p0, llama_pos p1, llama_pos shift) {
    if (shift != 0 && p0 != p1) {
        LLAMA_LOG_ERROR("%s: H2O cannot move positions (sequence %d)\n", __func__, seq_id);
    }
}

void h2o_context::seq_div(llama_seq_id seq_id, llama_pos p0, llama_pos p1, int d) {
    if (d != 1 && p0 != p1) {
        LLAMA_LOG_ERROR("%s: H2O cannot move positions (sequence %d)\n", __func__, seq_id);
    }
}

llama_pos h2o_context::seq_pos_min(llama_seq_id seq_id) const {
    const auto * kv = sequence(seq_id);

    return !kv || kv->state().n_tokens == 0 ? -1 : std::max(0, (llama_pos) rewind_limit(*kv) - 1);
}

llama_pos h2o_context::seq_pos_max(llama_seq_id seq_id) const {
    const auto * kv = sequence(seq_id);

    return kv ? (llama_pos) kv->state().n_tokens - 1 : -1;
}

llama_h2o_stats h2o_context::stats(const llama_h2o_kv & kv) const {
    llama_h2o_stats res = kv.stats;

    const auto &   state  = kv.state();
    const uint64_t n      = state.n_tokens;
    const uint32_t start  = state.open_start(config);
    const uint64_t n_kept = store.layout.is_compact ? config.n_memory(start) + n - start : n;

    res.bytes_token   = store.row_bytes(false) + store.row_bytes(true);
    res.bytes_kept    = n_kept*store.row_bytes(false) + n*store.row_bytes(true);
    res.bytes_dropped = store.cold(kv.id) ? 0 : (n - n_kept)*store.row_bytes(false);
    res.bytes_cold    = store.cold(kv.id) ? store.cold(kv.id)->n_bytes() : 0;
    res.bytes_kv      = store.n_bytes();
    res.bytes_intra   = intra ? intra->n_bytes() : 0;
    for (const auto & [buft, size] : index ? index->sizes() : std::map<ggml_backend_buffer_type_t, size_t>()) {
        res.bytes_index += size/seqs.size();
    }
    for (const auto & [buft, size] : caches.side.memory_breakdown()) {
        res.bytes_side += size/seqs.size();
    }
    for (const auto & [pos, checkpoint] : state.checkpoints) {
        res.bytes_side += checkpoint.side ? checkpoint.side->size() : 0;
    }
    for (const auto & layer : state.layers) {
        res.bytes_scores += (layer.scores.size() + layer.memory_scores.size())*sizeof(float);
        res.bytes_memory += layer.memory.size()*sizeof(int32_t);
    }

    res.t_gather_us    = kv.profile.t_part_us[H2O_PART_GATHER];
    res.t_attention_us = kv.profile.t_part_us[H2O_PART_ATTENTION];
    res.t_scores_us    = kv.profile.t_part_us[H2O_PART_SCORES];
    return res;
}
