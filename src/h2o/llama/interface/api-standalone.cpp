// The stand-alone cache of the C interface.

#include "h2o/llama/memory/memory.h"

#include "llama-cparams.h"
#include "llama-h2o-cache.h"
#include "llama-hparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

llama_h2o_kv * llama_h2o_kv_init(const llama_model * model, llama_h2o_kv_params params) {
    try {
        const h2o_config config(params.h2o);

        if (config.evict) {
            throw std::invalid_argument("[h2o] a stand-alone cache does not evict");
        }
        if (params.kv_size < 1) {
            throw std::invalid_argument("[h2o] kv_size must be at least 1");
        }
        for (uint32_t il = 0; il < model->hparams.n_layer_all; ++il) {
            const auto n_k = ggml_blck_size(params.type_k);
            const auto n_v = ggml_blck_size(params.type_v);
            if (model->hparams.n_embd_head_k(il)%n_k != 0 || model->hparams.n_embd_head_v(il)%n_v != 0) {
                throw std::invalid_argument(format("[h2o] the block size of the K or V type does not divide the head "
                        "size of layer %u", il));
            }
        }

        llama_memory_params memory = {};
        memory.type_k = params.type_k;
        memory.type_v = params.type_v;

        llama_cparams cparams = {};
        cparams.h2o        = config;
        cparams.n_ctx_seq  = params.kv_size;
        cparams.n_seq_max  = 1;
        cparams.flash_attn = true;

        const auto has_attention = [model](int32_t il) { return !model->hparams.is_recr(il); };

        auto * context = new h2o_memory(*model, memory, cparams, { has_attention, nullptr, nullptr });
        auto * kv = context->sequence(0);
        kv->sequence.keep_scores(true); // they are given by hand
        return kv;
    } catch (const std::exception & e) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, e.what());
        return nullptr;
    }
}

void llama_h2o_kv_free(llama_h2o_kv * kv) {
    if (kv) {
        delete &kv->memory; // and the sequence with it
    }
}

void llama_h2o_kv_clear(llama_h2o_kv * kv) {
    kv->memory.clear(*kv);
}

// colsum [n_rows, n]: a row for each KV head, or for each query head; false if it is neither
static bool add_scores(llama_h2o_kv * kv, const h2o_layer & layer, const h2o_columns & columns, const float * colsum,
        uint32_t n_rows, size_t n) {
    const uint32_t n_group = n_rows/layer.n_head_kv;
    if (n_rows != layer.n_head_kv && n_rows != layer.n_head) {
        return false;
    }
    std::vector<float> sums(layer.n_head_kv*n);
    for (uint32_t h = 0; h < n_rows; ++h) {
        for (size_t i = 0; i < n; ++i) {
            sums[h/n_group*n + i] += colsum[h*n + i];
        }
    }
    kv->sequence.add_scores(layer.index, columns, sums.data(), n);
    return true;
}

bool llama_h2o_kv_init_chunk_scores(llama_h2o_kv * kv, int32_t il, uint32_t start, uint32_t n, const float * colsum,
        uint32_t n_rows) {
    const auto * layer   = kv->state().layer(il);
    const auto   kv_size = kv->memory.store.layout.kv_size;

    return layer && n >= 1 && start <= kv_size && n <= kv_size - start &&
        add_scores(kv, *layer, { 0, start, n }, colsum, n_rows, n);
}

bool llama_h2o_kv_accumulate_memory_scores(llama_h2o_kv * kv, int32_t il, const float * colsum, uint32_t n_rows) {
    const auto * layer = kv->state().layer(il);

    return layer && add_scores(kv, *layer, { (uint32_t) layer->n_memory(), 0, 0 }, colsum, n_rows,
            kv->memory.config.memory_size());
}

bool llama_h2o_kv_build_memory_set(llama_h2o_kv * kv, int32_t il, uint32_t chunk_end) {
    const auto * layer = kv->state().layer(il);
    if (!layer || chunk_end < 1 || chunk_end > kv->memory.store.layout.kv_size ||
            !layer->can_build_memory_set(kv->memory.config, chunk_end)) {
        return false;
    }

    kv->sequence.build_memory_set(layer->index, chunk_end);
    return true;
}

bool llama_h2o_kv_next_chunk(llama_h2o_kv * kv, uint32_t n) {
    if (n > kv->memory.store.layout.kv_size - kv->state().n_tokens) {
        return false;
    }

    kv->sequence.add_tokens(n, /*generated =*/ true); // unscored
    return true;
}

bool llama_h2o_kv_set_kv(llama_h2o_kv * kv, int32_t il, uint32_t p0, uint32_t p1, const float * k, const float * v) {
    const auto & store = kv->memory.store;
    const auto * layer = store.layer(il);
    if (!layer || layer->is_dense() || p0 > p1 || p1 > store.layout.kv_size) {
        return false;
    }
    store.rows(*layer, H2O_K, kv->id).set(p0, p1, k);
    store.rows(*layer, H2O_V, kv->id).set(p0, p1, v);
    return true;
}

// K or V of the memory set [n_head_kv, M, n_embd_head]; padding is zero
static bool gather(const llama_h2o_kv & kv, int32_t il, h2o_kv_part part, float * dst) {
    const auto & store = kv.memory.store;
    const auto * layer = kv.state().layer(il);
    if (!layer) {
        return false;
    }
    const auto   rows   = store.rows(*store.layer(il), part, kv.id);
    const size_t n_rows = store.layout.n_rows();
    const size_t n_embd = rows.n_embd;

    std::vector<float> all(layer->n_head_kv*n_rows*n_embd);
    rows.get(0, n_rows, all.data());

    const auto memory = kv.state().memory(*layer);
    for (size_t i = 0; i < memory.size(); ++i, dst += n_embd) {
        const size_t h = i/kv.memory.config.memory_size();
        if (memory[i] < 0) {
            std::fill_n(dst, n_embd, 0.0f);
        } else {
            std::copy_n(all.begin() + (h*n_rows + memory[i])*n_embd, n_embd, dst);
        }
    }
    return true;
}

bool llama_h2o_kv_gather_k_memory(llama_h2o_kv * kv, int32_t il, float * dst) {
    return gather(*kv, il, H2O_K, dst);
}

bool llama_h2o_kv_gather_v_memory(llama_h2o_kv * kv, int32_t il, float * dst) {
    return gather(*kv, il, H2O_V, dst);
}
