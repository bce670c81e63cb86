#include "h2o/llama/memory/memory.h"

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
#include <string_view>

static std::vector<h2o_layer> sequence_layers(const h2o_kv_store & store) {
    std::vector<h2o_layer> res;
    for (const auto & layer : store.layers()) {
        if (!layer.is_dense()) {
            res.emplace_back(layer.index, layer.il, layer.n_head, layer.k.n_head);
        }
    }
    return res;
}

namespace {

// Tensors of a layer as in its attention: its device is asked which operators it has.
struct probe {
    probe(const h2o_kv_store & store, const h2o_kv_layer & layer)
        : ctx(ggml_init({ 16*ggml_tensor_overhead(), nullptr, true })), device(layer.device),
          k(store.view(ctx.get(), layer, H2O_K, 0)), v(store.view(ctx.get(), layer, H2O_V, 0)),
          q(ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, layer.k.n_embd, 1, layer.n_head)) {}

    bool has_fused_attention() const {
        ggml_h2o_attn_params op = {};
        op.n_k = 1;
        return ggml_backend_dev_supports_op(device, ggml_h2o_attn(ctx.get(), q, k, v, &op).o->view_src);
    }

    bool has_flash_attention() const {
        ggml_tensor * mask = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F16, k->ne[1], 1);

        return ggml_backend_dev_supports_op(device,
                ggml_flash_attn_ext(ctx.get(), q, k, v, mask, 1.0f, 0.0f, 0.0f));
    }

    bool has_top_keys(ggml_tensor * keys) const {
        return ggml_backend_dev_supports_op(device, ggml_h2o_top_keys(ctx.get(), q, keys, nullptr, 1, 1, 0));
    }

    ggml_context_ptr   ctx;
    ggml_backend_dev_t device;
    ggml_tensor      * k, * v, * q;
};

} // namespace

// throws h2o_refusal if a layer cannot have extra keys, which only our operator takes
static void check_lookup(const h2o_graph_env & env) {
    for (const auto & layer : env.store.layers()) {
        if (layer.is_dense()) {
            continue;
        }
        const probe p(env.store, layer);
        if (!env.is_fused[layer.il] ||
                (env.index && !p.has_top_keys(env.index->keys(p.ctx.get(), layer, 0, 1)))) {
            throw h2o_refusal(env.index ? h2o_reason::LOOKUP : h2o_reason::MODEL,
                    format("[h2o] %s needs attention as one operator, which layer %d does not have. Leave flash "
                            "attention on, H2O_NO_FUSED_ATTENTION unset and all layers on the CPU, or use %s",
                        env.index ? "lookup by the index of keys" : "a cold store", layer.il,
                        env.index ? "lookup_budget 0" : "none"));
        }
    }
}

llama_h2o_kv::llama_h2o_kv(h2o_memory & memory, llama_seq_id id)
    : memory(memory), id(id), sequence(memory.config, sequence_layers(memory.store)) {
}

h2o_memory::h2o_memory(const llama_model & model, const llama_memory_params & params, const llama_cparams & cparams,
        const h2o_model_layers & layers)
    : config(cparams.h2o), model(model), n_batch(cparams.n_batch), n_ubatch(cparams.n_ubatch),
      caches(model, params, cparams, layers),
      store(config, cparams.n_ctx_seq, cparams.n_seq_max, caches.layers(),
              { config, model.hparams.n_ctx_train, caches.side.window || config.has_dense_layers() },
              n_batch > 0 && config.has_cold_store() ? h2o_make_cold_place(config.cold_store) : nullptr),
      env { config, store, nullptr, nullptr, {}, {} } {
    const uint32_t n_seq_max = cparams.n_seq_max;

    if (n_batch > 0 && config.has_key_index()) {
        index = std::make_unique<h2o_key_index>(store.layers(), store.layout, n_seq_max);
    }
    if (n_batch > 0 && config.schedule == LLAMA_H2O_SCHEDULE_TWO_PHASE) {
        intra = std::make_unique<h2o_intra>(store.layers(), n_batch);
    }
    env.index = index.get();
    env.intra = intra.get();
    for (const auto & layer : store.layers()) {
        env.is_fused.resize(std::max<size_t>(env.is_fused.size(), layer.il + 1));
        env.upstream_decodes.resize(env.is_fused.size());

        const probe p(store, layer);
        const bool  is_fused = cparams.flash_attn && !h2o_env("H2O_NO_FUSED_ATTENTION") && p.has_fused_attention();
        env.is_fused[layer.il] = is_fused;
        // upstream's kernel is faster on a GPU; a device behind RPC may be a CPU. Layers that read another's K and V are ours
        env.upstream_decodes[layer.il] = !layers.reuse && (!is_fused ||
                (std::string_view(ggml_backend_reg_name(ggml_backend_dev_backend_reg(layer.device))) == "CUDA" &&
                        p.has_flash_attention()));
    }
    if (config.has_key_index() || config.has_cold_store()) {
        check_lookup(env);
    }

    for (uint32_t id = 0; id < n_seq_max; ++id) {
        seqs.push_back(std::make_unique<llama_h2o_kv>(*this, id));
        release_rows(id);
    }

    char desc[512];
    llama_h2o_params_desc(&config, desc, sizeof(desc));
    LLAMA_LOG_INFO("%s: H2O: %s\n", __func__, desc);
}

llama_h2o_kv * h2o_memory::sequence(llama_seq_id seq_id) const {
    return seq_id >= 0 && (size_t) seq_id < seqs.size() ? seqs[seq_id].get() : nullptr;
}

llama_memory_context_ptr h2o_memory::init_update(llama_context * lctx, bool optimize) {
    return caches.cache->init_update(lctx, optimize); // nothing to do
}

// Rows are written before they are read, so they are not cleared.
void h2o_memory::clear(bool data) {
    GGML_UNUSED(data);
    for (auto & kv : seqs) {
        clear(*kv);
    }
}

void h2o_memory::clear(llama_h2o_kv & kv) {
    caches.remove_cells(kv.id, 0);
    caches.side.clear(kv.id);
    kv.sequence.clear();
    store.go_back(kv.id, kv.state(), nullptr, backends);
    release_rows(kv.id);
    kv.counts  = {};
    kv.profile = {};
}

void h2o_memory::release_rows(llama_seq_id id) const {
    store.release(id, 0);
    if (index) {
        index->release(id);
    }
}

void h2o_memory::go_back(llama_h2o_kv & kv, const h2o_checkpoint & checkpoint, const h2o_row_copies * rows,
        bool moves_keys) {
    kv.sequence.restore(checkpoint);
    store.go_back(kv.id, kv.state(), rows, moves_keys ? backends : std::vector<ggml_backend_t>());
    caches.remove_cells(kv.id, checkpoint.n_tokens);
}

std::map<ggml_backend_buffer_type_t, size_t> h2o_memory::memory_breakdown() const {
    auto res = caches.cache->memory_breakdown();

    const auto add = [&](const std::map<ggml_backend_buffer_type_t, size_t> & sizes) {
        for (const auto & [buft, size] : sizes) {
            res[buft] += size;
        }
    };
    if (caches.dense_cache) {
        add(caches.dense_cache->memory_breakdown());
    }
    for (const auto * cache : caches.side.all()) {
        add(cache->memory_breakdown());
    }
    if (index) {
        add(index->sizes());
    }
    return res;
}

bool h2o_memory::can_rewind(const llama_h2o_kv & kv, uint32_t pos) const {
    return kv.past().can_rewind(pos) && (caches.side.can_rewind(kv.id, pos) || kv.past().side_of(pos));
}

uint32_t h2o_memory::rewind_step(const llama_h2o_kv & kv) const {
    return config.evict || !caches.side.empty() ? 0 : kv.past().rewind_step();
}

uint32_t h2o_memory::rewind_point(const llama_h2o_kv & kv, uint32_t pos) const {
    while (pos > 0 && !can_rewind(kv, pos)) {
        pos = kv.past().nearest(pos - 1);
    }
    return pos;
}

uint32_t h2o_memory::rewind_limit(const llama_h2o_kv & kv) const {
    if (rewind_step(kv) == 1) {
        return 0;
    }
    uint32_t pos = kv.state().n_tokens;
    while (pos > 0 && can_rewind(kv, pos - 1)) {
        pos--;
    }
    return pos;
}

void h2o_memory::seq_cp(llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1) {
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
        caches.fill_cells(dst->id, 0, src->state().n_tokens);
        caches.side.copy(src->id, dst->id);
        dst->sequence.copy_from(src->sequence);
    } catch (const std::exception & e) { // a device that cannot be read
        LLAMA_LOG_ERROR("%s: %s\n", __func__, e.what());
        clear(*dst);
    }
}

void h2o_memory::seq_keep(llama_seq_id seq_id) {
    for (auto & kv : seqs) {
        if (kv->id != seq_id) {
            clear(*kv);
        }
    }
}

llama_pos h2o_memory::seq_pos_min(llama_seq_id seq_id) const {
    const auto * kv = sequence(seq_id);

    return !kv || kv->state().n_tokens == 0 ? -1 : std::max(0, (llama_pos) rewind_limit(*kv) - 1);
}

llama_pos h2o_memory::seq_pos_max(llama_seq_id seq_id) const {
    const auto * kv = sequence(seq_id);

    return kv ? (llama_pos) kv->state().n_tokens - 1 : -1;
}
