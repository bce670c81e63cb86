#include "h2o/llama/memory/memory.h"
#include "h2o/store/cold/store.h"

#include "llama-context.h"

uint64_t llama_h2o_memory_bytes(const llama_context * ctx) {
    uint64_t res = 0;
    if (const auto * memory = llama_get_memory(ctx)) {
        for (const auto & [buft, size] : memory->memory_breakdown()) {
            res += size;
        }
    }
    return res;
}

llama_h2o_kv * llama_get_h2o_kv(const llama_context * ctx) {
    return llama_get_h2o_kv_seq(ctx, 0);
}

llama_h2o_kv * llama_get_h2o_kv_seq(const llama_context * ctx, llama_seq_id seq_id) {
    const auto * memory = h2o_memory::of(llama_get_memory(ctx));
    return memory ? memory->sequence(seq_id) : nullptr;
}

void llama_h2o_set_call(llama_h2o_kv * kv, llama_h2o_call call, uint32_t dense_tail) {
    kv->next_call  = call;
    kv->dense_tail = dense_tail;
}

bool llama_h2o_profile_callback(ggml_tensor * t, bool ask, void * kv) {
    return (*static_cast<llama_h2o_kv **>(kv))->profile.eval(t, ask);
}

void llama_h2o_set_progress_callback(llama_h2o_kv * kv, llama_h2o_progress_callback callback, void * user_data) {
    kv->progress      = callback;
    kv->progress_data = user_data;
}

uint32_t llama_h2o_kv_rewind_point(const llama_h2o_kv * kv, uint32_t pos) {
    return kv->memory.rewind_point(*kv, pos);
}

void llama_h2o_kv_set_record(llama_h2o_kv * kv, bool record) {
    kv->sequence.keep_history    = record;
    kv->sequence.keep_extra_keys = record;
    kv->sequence.keep_scores(record);
}

void llama_h2o_kv_keep_boundaries(llama_h2o_kv * kv) {
    if (kv->memory.rewind_step(*kv) == 0) {
        kv->sequence.keep_history = true;
    }
}

llama_h2o_info llama_h2o_kv_info(const llama_h2o_kv * kv) {
    const auto & config = kv->memory.config;
    const auto & state  = kv->state();

    return {
        /*.chunk_size    =*/ config.chunk_size,
        /*.local_window  =*/ config.local_window,
        /*.heavy_budget  =*/ config.heavy_budget,
        /*.sink_tokens   =*/ config.sink_tokens,
        /*.memory_size   =*/ (uint32_t) config.memory_size(),
        /*.lookup_budget =*/ config.lookup_budget,
        /*.tile          =*/ config.tile,
        /*.kv_size       =*/ kv->memory.store.layout.n_rows(),
        /*.n_positions   =*/ kv->memory.store.layout.n_positions(),
        /*.n_tokens      =*/ state.n_tokens,
        /*.chunk_index   =*/ (state.n_tokens + config.chunk_size - 1)/config.chunk_size,
        /*.n_memory_sets =*/ state.n_memory_sets(),
        /*.max_draft     =*/ (config.decode == LLAMA_H2O_DECODE_MEMORY ? config.MAX_GENERATED : config.chunk_size) - 1,
        /*.rewind_step   =*/ kv->memory.rewind_step(*kv),
        /*.has_scores    =*/ state.is_scored,
        /*.next_piece    =*/ state.unseen.empty() ? UINT32_MAX : state.unseen.begin()->first,
        /*.exact_end     =*/ state.exact_end,
    };
}

llama_h2o_stats llama_h2o_kv_stats(const llama_h2o_kv * kv) {
    const auto &   config = kv->memory.config;
    const auto &   store  = kv->memory.store;
    const uint64_t n      = kv->state().n_tokens;
    const uint32_t start  = kv->state().open_start();
    const uint64_t n_kept = store.layout.is_compact ? config.n_memory(start) + n - start : n;
    const auto *   cold   = store.cold(kv->id);

    return {
        /*.n_decode      =*/ kv->counts.passes[h2o_step::DECODE].n,
        /*.bytes_kept    =*/ n_kept*store.row_bytes(false) + n*store.row_bytes(true),
        /*.bytes_cold    =*/ cold ? cold->n_bytes() : 0,
        /*.bytes_dropped =*/ cold ? 0 : (n - n_kept)*store.row_bytes(false),
    };
}

uint32_t llama_h2o_kv_n_layer(const llama_h2o_kv * kv) {
    return kv->state().layers.size();
}

int32_t llama_h2o_kv_layer_id(const llama_h2o_kv * kv, uint32_t i) {
    const auto & layers = kv->state().layers;
    return i < layers.size() ? layers[i].il : -1;
}

uint32_t llama_h2o_kv_n_head_kv(const llama_h2o_kv * kv, int32_t il) {
    const auto * layer = kv->state().layer(il);
    return layer ? layer->n_head_kv : 0;
}

void llama_h2o_kv_keep_attention(llama_h2o_kv * kv, bool keep) {
    kv->sequence.keep_attention = keep;
    if (keep) {
        kv->sequence.forget_attention();
    }
}

bool llama_h2o_kv_attention(const llama_h2o_kv * kv, int32_t il, float * dst) {
    const auto * layer = kv->state().layer(il);
    if (!layer || layer->attention.empty()) {
        return false;
    }
    const size_t n_tokens = kv->state().n_tokens;
    const size_t n_kept   = layer->attention.size()/layer->n_head_kv; // tokens may have been added
    for (uint32_t h = 0; h < layer->n_head_kv; ++h) {
        for (size_t pos = 0; pos < n_tokens; ++pos) {
            *dst++ = pos < n_kept ? layer->attention[pos*layer->n_head_kv + h] : 0.0f;
        }
    }
    return true;
}
