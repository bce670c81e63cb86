#include "h2o/llama/api.h"
#include "h2o/llama/memory.h"

#include "llama-context.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

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
    auto * memory = dynamic_cast<llama_memory_h2o *>(llama_get_memory(ctx));
    return memory && memory->has_stream(seq_id) ? wrap(&memory->stream(seq_id)) : nullptr;
}

const char * llama_h2o_scorer_name(int32_t i) {
    const auto & scorers = h2o_scorers();
    return i >= 0 && i < (int32_t) scorers.size() ? scorers[i]->name() : nullptr;
}

void llama_h2o_set_call(llama_h2o_kv * kv, llama_h2o_call call, uint32_t dense_tail) {
    unwrap(kv)->call       = call;
    unwrap(kv)->dense_tail = dense_tail;
}

bool llama_h2o_profile_callback(ggml_tensor * t, bool ask, void * kv) {
    return unwrap(*static_cast<llama_h2o_kv **>(kv))->profile.eval(t, ask);
}

void llama_h2o_set_progress_callback(llama_h2o_kv * kv, llama_h2o_progress_callback callback, void * user_data) {
    unwrap(kv)->progress      = callback;
    unwrap(kv)->progress_data = user_data;
}

uint32_t llama_h2o_kv_n_memory(const llama_h2o_kv * kv, uint32_t chunk_end) {
    return unwrap(kv)->sequence.config.n_memory(chunk_end);
}

bool llama_h2o_kv_can_rewind(const llama_h2o_kv * kv, uint32_t pos) {
    return pos == 0 || unwrap(kv)->sequence.can_rewind(pos);
}

bool llama_h2o_kv_moves_rows(const llama_h2o_kv * kv, uint32_t n_tokens) {
    const auto & sequence = unwrap(kv)->sequence;
    return sequence.layout.is_compact && n_tokens > sequence.open_end();
}

void llama_h2o_kv_set_state_end(llama_h2o_kv * kv, uint32_t n_tokens) {
    unwrap(kv)->state_end = n_tokens;
}

void llama_h2o_kv_set_record(llama_h2o_kv * kv, bool record) {
    unwrap(kv)->sequence.keep_records = record;
}

llama_h2o_info llama_h2o_kv_info(const llama_h2o_kv * kv) {
    const auto & sequence = unwrap(kv)->sequence;
    const auto & config   = sequence.config;

    return {
        /*.chunk_size    =*/ config.chunk_size,
        /*.local_window  =*/ config.local_window,
        /*.heavy_budget  =*/ config.heavy_budget,
        /*.sink_tokens   =*/ config.sink_tokens,
        /*.memory_size   =*/ (uint32_t) config.memory_size(),
        /*.lookup_budget =*/ config.lookup_budget,
        /*.tile          =*/ config.tile,
        /*.kv_size       =*/ sequence.layout.n_rows(),
        /*.n_tokens      =*/ sequence.n_tokens(),
        /*.chunk_index   =*/ sequence.chunk_index(),
        /*.lookup_start  =*/ sequence.tiles ? sequence.tiles->start() : 0,
        /*.n_memory_sets =*/ sequence.n_memory_sets(),
        /*.max_draft     =*/ (sequence.has_pending() ? config.MAX_PENDING : config.chunk_size) - 1,
    };
}

llama_h2o_stats llama_h2o_kv_stats(const llama_h2o_kv * kv) {
    llama_h2o_stats res = unwrap(kv)->sequence.stats;
    unwrap(kv)->count_bytes(res.bytes_kept, res.bytes_dropped);
    if (const auto & cold = unwrap(kv)->sequence.cold) {
        res.bytes_cold = cold->n_bytes();
    }
    const auto & parts = unwrap(kv)->profile.t_part_us;
    res.t_gather_us    = parts[H2O_PART_GATHER];
    res.t_attention_us = parts[H2O_PART_ATTENTION];
    res.t_scores_us    = parts[H2O_PART_SCORES];

    return res;
}

bool llama_h2o_kv_lossless_stats(const llama_h2o_kv * kv, llama_h2o_lossless_stats * stats) {
    const auto & cold = unwrap(kv)->sequence.cold;
    if (!cold || !cold->codec) {
        return false;
    }
    *stats = cold->codec->stats();
    return true;
}

uint32_t llama_h2o_kv_n_layer(const llama_h2o_kv * kv) {
    return unwrap(kv)->sequence.layers.size();
}

int32_t llama_h2o_kv_layer_id(const llama_h2o_kv * kv, uint32_t i) {
    const auto & layers = unwrap(kv)->sequence.layers;
    return i < layers.size() ? layers[i].il : -1;
}

uint32_t llama_h2o_kv_n_head(const llama_h2o_kv * kv, int32_t il) {
    const auto * layer = unwrap(kv)->sequence.layer(il);
    return layer ? layer->n_head : 0;
}

uint32_t llama_h2o_kv_n_head_kv(const llama_h2o_kv * kv, int32_t il) {
    const auto * layer = unwrap(kv)->sequence.layer(il);
    return layer ? layer->n_head_kv : 0;
}

uint32_t llama_h2o_kv_head_size_k(const llama_h2o_kv * kv, int32_t il) {
    return unwrap(kv)->sequence.layer(il) ? unwrap(kv)->model.hparams.n_embd_head_k(il) : 0;
}

uint32_t llama_h2o_kv_head_size_v(const llama_h2o_kv * kv, int32_t il) {
    return unwrap(kv)->sequence.layer(il) ? unwrap(kv)->model.hparams.n_embd_head_v(il) : 0;
}

bool llama_h2o_kv_scores(const llama_h2o_kv * kv, int32_t il, float * dst) {
    const auto & sequence = unwrap(kv)->sequence;
    const auto * layer = sequence.layer(il);
    if (!layer) {
        return false;
    }

    const auto scores = sequence.scores(*layer);
    std::copy(scores.begin(), scores.end(), dst);
    return true;
}

bool llama_h2o_kv_memory_indices(const llama_h2o_kv * kv, int32_t il, int32_t * dst) {
    const auto & sequence = unwrap(kv)->sequence;
    const auto * layer = sequence.layer(il);
    if (!layer) {
        return false;
    }

    const auto memory = sequence.memory(*layer);
    std::copy(memory.begin(), memory.end(), dst);
    return true;
}

bool llama_h2o_kv_set_memory_indices(llama_h2o_kv * kv, int32_t il, const int32_t * src) {
    auto & sequence = unwrap(kv)->sequence;
    auto * layer = sequence.layer(il);
    if (!layer || sequence.layout.is_compact || sequence.n_tokens() == 0 || sequence.n_tokens() % sequence.config.chunk_size != 0) {
        return false;
    }

    const uint32_t n = sequence.config.n_memory(sequence.n_tokens());

    const int32_t * row = src;
    for (uint32_t h = 0; h < layer->n_head_kv; ++h, row += sequence.config.memory_size()) {
        const bool ascends = std::adjacent_find(row, row + n, [](int32_t a, int32_t b) { return a >= b; }) == row + n;
        const bool differs = sequence.config.shared_heads && !std::equal(row, row + n, src);
        if (row[0] < 0 || row[n - 1] >= (int32_t) sequence.n_tokens() || !ascends || differs) {
            return false;
        }
    }

    sequence.set_memory(*layer, src);
    return true;
}

bool llama_h2o_kv_history(const llama_h2o_kv * kv, uint32_t chunk, int32_t il, int32_t * dst) {
    const auto * layer = unwrap(kv)->sequence.layer(il);
    if (!layer) {
        return false;
    }

    const auto memory = unwrap(kv)->sequence.history(*layer, chunk);
    std::copy(memory.begin(), memory.end(), dst);
    return !memory.empty();
}

uint32_t llama_h2o_kv_lookup(const llama_h2o_kv * kv, uint32_t i, int32_t * dst) {
    const auto & tiles = unwrap(kv)->sequence.tiles;
    if (!tiles) {
        return 0;
    }
    const uint64_t start = (uint64_t) i*tiles->tile;
    const auto     view  = tiles->asked(std::min<uint64_t>(start, UINT32_MAX), std::min<uint64_t>(start + tiles->tile, UINT32_MAX));
    for (const auto * row = view.begin; dst && row < view.end; ++row) {
        *dst++ = row->pos;
        *dst++ = row->query;
    }
    return view.end - view.begin;
}

static bool h2o_get_positions(const h2o_stream & stream, int32_t il, h2o_cold_store::part_t part, uint32_t p0, uint32_t p1, float * dst) {
    if (!stream.sequence.layer(il) || p0 > p1 || p1 > stream.sequence.n_tokens()) { // rows beyond that may never have been written
        return false;
    }
    try {
        stream.get_positions(il, part, p0, p1, dst);
        return true;
    } catch (const std::exception & e) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, e.what());
        return false;
    }
}

bool llama_h2o_kv_get_k(const llama_h2o_kv * kv, int32_t il, uint32_t p0, uint32_t p1, float * dst) {
    return h2o_get_positions(*unwrap(kv), il, h2o_cold_store::K, p0, p1, dst);
}

bool llama_h2o_kv_get_v(const llama_h2o_kv * kv, int32_t il, uint32_t p0, uint32_t p1, float * dst) {
    return h2o_get_positions(*unwrap(kv), il, h2o_cold_store::V, p0, p1, dst);
}
