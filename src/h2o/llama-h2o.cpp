#include "llama-h2o.h"

#include "h2o-kv.h"
#include "h2o-scores.h"

#include "llama-context.h"
#include "llama-impl.h"
#include "llama-kv-cache-h2o.h"

#include <algorithm>
#include <cstring>
#include <vector>

// llama_h2o_kv is the C name of llama_kv_cache_h2o
static llama_kv_cache_h2o * unwrap(llama_h2o_kv * kv) {
    return reinterpret_cast<llama_kv_cache_h2o *>(kv);
}

static const llama_kv_cache_h2o * unwrap(const llama_h2o_kv * kv) {
    return reinterpret_cast<const llama_kv_cache_h2o *>(kv);
}

static llama_h2o_kv * wrap(llama_kv_cache_h2o * kv) {
    return reinterpret_cast<llama_h2o_kv *>(kv);
}

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
    return wrap(dynamic_cast<llama_kv_cache_h2o *>(llama_get_memory(ctx)));
}

const char * llama_h2o_scorer_name(int32_t i) {
    const auto & scorers = h2o_scorers();
    return i >= 0 && i < (int32_t) scorers.size() ? scorers[i]->name() : nullptr;
}

void llama_h2o_set_dense_tail(llama_h2o_kv * kv, uint32_t n) {
    unwrap(kv)->dense_tail = n;
}

void llama_h2o_set_progress_callback(llama_h2o_kv * kv, llama_h2o_progress_callback callback, void * user_data) {
    unwrap(kv)->progress      = callback;
    unwrap(kv)->progress_data = user_data;
}

void llama_h2o_kv_set_record(llama_h2o_kv * kv, bool record) {
    unwrap(kv)->state.record = record;
}

llama_h2o_info llama_h2o_kv_info(const llama_h2o_kv * kv) {
    const auto & state  = unwrap(kv)->state;
    const auto & config = state.config;

    return {
        /*.chunk_size    =*/ config.chunk_size,
        /*.local_window  =*/ config.local_window,
        /*.heavy_budget  =*/ config.heavy_budget,
        /*.sink_tokens   =*/ config.sink_tokens,
        /*.memory_size   =*/ (uint32_t) config.memory_size(),
        /*.kv_size       =*/ state.kv_size,
        /*.n_tokens      =*/ state.n_tokens(),
        /*.chunk_index   =*/ state.chunk_index(),
        /*.n_memory_sets =*/ state.n_memory_sets(),
    };
}

llama_h2o_stats llama_h2o_kv_stats(const llama_h2o_kv * kv) {
    return unwrap(kv)->stats;
}

uint32_t llama_h2o_kv_n_layer(const llama_h2o_kv * kv) {
    return unwrap(kv)->state.layers.size();
}

int32_t llama_h2o_kv_layer_id(const llama_h2o_kv * kv, uint32_t i) {
    const auto & layers = unwrap(kv)->state.layers;
    return i < layers.size() ? layers[i].il : -1;
}

uint32_t llama_h2o_kv_n_head(const llama_h2o_kv * kv, int32_t il) {
    const auto * layer = unwrap(kv)->state.layer(il);
    return layer ? layer->n_head : 0;
}

uint32_t llama_h2o_kv_n_head_kv(const llama_h2o_kv * kv, int32_t il) {
    const auto * layer = unwrap(kv)->state.layer(il);
    return layer ? layer->n_head_kv : 0;
}

uint32_t llama_h2o_kv_head_size_k(const llama_h2o_kv * kv, int32_t il) {
    return unwrap(kv)->state.layer(il) ? unwrap(kv)->get_model().hparams.n_embd_head_k(il) : 0;
}

uint32_t llama_h2o_kv_head_size_v(const llama_h2o_kv * kv, int32_t il) {
    return unwrap(kv)->state.layer(il) ? unwrap(kv)->get_model().hparams.n_embd_head_v(il) : 0;
}

bool llama_h2o_kv_scores(const llama_h2o_kv * kv, int32_t il, float * dst) {
    const auto & state = unwrap(kv)->state;
    const auto * layer = state.layer(il);
    if (!layer) {
        return false;
    }

    h2o_scores scores(layer->scores);
    for (uint32_t h = 0; h < layer->n_head_kv; ++h) {
        for (uint32_t p = 0; p < state.n_tokens(); ++p) {
            *dst++ = scores.get(h, p);
        }
    }
    return true;
}

bool llama_h2o_kv_memory_indices(const llama_h2o_kv * kv, int32_t il, int32_t * dst) {
    const auto & state = unwrap(kv)->state;
    const auto * layer = state.layer(il);
    if (!layer) {
        return false;
    }

    const auto memory = state.memory(*layer);
    std::copy(memory.begin(), memory.end(), dst);
    return true;
}

bool llama_h2o_kv_set_memory_indices(llama_h2o_kv * kv, int32_t il, const int32_t * src) {
    auto & state = unwrap(kv)->state;
    auto * layer = state.layer(il);
    if (!layer || state.n_tokens() == 0 || state.n_tokens() % state.config.chunk_size != 0) {
        return false;
    }

    const uint32_t n = state.n_memory(state.n_tokens());

    const int32_t * row = src;
    for (uint32_t h = 0; h < layer->n_head_kv; ++h, row += state.config.memory_size()) {
        const bool ascends = std::adjacent_find(row, row + n, [](int32_t a, int32_t b) { return a >= b; }) == row + n;
        if (row[0] < 0 || row[n - 1] >= (int32_t) state.n_tokens() || !ascends) {
            return false;
        }
    }

    state.set_memory(*layer, src);
    return true;
}

bool llama_h2o_kv_history(const llama_h2o_kv * kv, uint32_t chunk, int32_t il, int32_t * dst) {
    const auto * layer = unwrap(kv)->state.layer(il);
    if (!layer || chunk >= layer->history.size()) {
        return false;
    }

    std::copy(layer->history[chunk].begin(), layer->history[chunk].end(), dst);
    return true;
}

static bool h2o_range_ok(const llama_kv_cache_h2o & kv, int32_t il, uint32_t p0, uint32_t p1) {
    return kv.state.layer(il) && p0 <= p1 && p1 <= kv.state.kv_size;
}

bool llama_h2o_kv_get_k(const llama_h2o_kv * kv, int32_t il, uint32_t p0, uint32_t p1, float * dst) {
    if (!h2o_range_ok(*unwrap(kv), il, p0, p1)) {
        return false;
    }
    h2o_kv_get_k(*unwrap(kv), il, p0, p1, dst);
    return true;
}

bool llama_h2o_kv_get_v(const llama_h2o_kv * kv, int32_t il, uint32_t p0, uint32_t p1, float * dst) {
    if (!h2o_range_ok(*unwrap(kv), il, p0, p1)) {
        return false;
    }
    h2o_kv_get_v(*unwrap(kv), il, p0, p1, dst);
    return true;
}

//
// stand-alone cache
//

llama_h2o_kv * llama_h2o_kv_init(const llama_model * model, llama_h2o_kv_params params) {
    try {
        h2o_config config;
        config.chunk_size   = params.chunk_size;
        config.local_window = params.local_window;
        config.heavy_budget = params.heavy_budget;
        config.sink_tokens  = params.sink_tokens;
        config.scorer       = &h2o_find_scorer(params.scorer);
        config.pooling      = params.pooling;
        config.score_type   = params.score_type;
        config.validate();

        llama_kv_cache_h2o::check_model(*model);

        if (params.kv_size < 1) {
            throw std::invalid_argument("[h2o] kv_size must be at least 1");
        }
        if (params.v_trans && ggml_is_quantized(params.type_v)) {
            throw std::invalid_argument("[h2o] a transposed V cannot be quantized");
        }
        for (uint32_t il = 0; il < model->hparams.n_layer_all; ++il) {
            const auto n_k = ggml_blck_size(params.type_k);
            const auto n_v = ggml_blck_size(params.type_v);
            if (model->hparams.n_embd_head_k(il)%n_k != 0 || model->hparams.n_embd_head_v(il)%n_v != 0) {
                throw std::invalid_argument(format("[h2o] the block size of the K or V type does not divide the head size of layer %u", il));
            }
        }

        return wrap(new llama_kv_cache_h2o(*model, params.type_k, params.type_v, params.v_trans, /*offload =*/ false,
                    params.kv_size, /*n_batch =*/ 0, config, nullptr));
    } catch (const std::exception & e) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, e.what());
        return nullptr;
    }
}

void llama_h2o_kv_free(llama_h2o_kv * kv) {
    delete unwrap(kv);
}

void llama_h2o_kv_clear(llama_h2o_kv * kv) {
    unwrap(kv)->clear(true);
}

// column sums with the layer's KV heads as rows, empty if n_rows fits neither KV heads nor query heads
static std::vector<float> h2o_colsum_rows(const h2o_layer & layer, const float * colsum, uint32_t n_rows, uint32_t n_cols) {
    std::vector<float> res;

    if (n_rows == layer.n_head_kv) {
        res.assign(colsum, colsum + (size_t) n_rows*n_cols);
    } else if (n_rows == layer.n_head) {
        res.resize((size_t) layer.n_head_kv*n_cols);
        h2o_scores_reduce_heads(colsum, layer.n_head, layer.n_head_kv, n_cols, res.data());
    }

    return res;
}

bool llama_h2o_kv_init_chunk_scores(llama_h2o_kv * kv, int32_t il, uint32_t start, uint32_t n, const float * colsum, uint32_t n_rows) {
    auto & state = unwrap(kv)->state;
    auto * layer = state.layer(il);
    if (!layer || n < 1 || start > state.kv_size || n > state.kv_size - start) {
        return false;
    }

    const auto rows = h2o_colsum_rows(*layer, colsum, n_rows, n);
    if (rows.empty()) {
        return false;
    }

    state.add_chunk_scores(*layer, start, n, rows.data());
    return true;
}

bool llama_h2o_kv_accumulate_memory_scores(llama_h2o_kv * kv, int32_t il, const float * colsum, uint32_t n_rows) {
    auto & state = unwrap(kv)->state;
    auto * layer = state.layer(il);
    if (!layer) {
        return false;
    }

    const auto rows = h2o_colsum_rows(*layer, colsum, n_rows, state.config.memory_size());
    if (rows.empty()) {
        return false;
    }

    state.add_memory_scores(*layer, rows.data());
    return true;
}

bool llama_h2o_kv_build_memory_set(llama_h2o_kv * kv, int32_t il, uint32_t chunk_end) {
    auto & state = unwrap(kv)->state;
    auto * layer = state.layer(il);
    if (!layer || chunk_end < 1 || chunk_end > state.kv_size) {
        return false;
    }

    state.build_memory_set(*layer, chunk_end);
    return true;
}

bool llama_h2o_kv_next_chunk(llama_h2o_kv * kv, uint32_t n) {
    auto & state = unwrap(kv)->state;
    if (n > state.kv_size - state.n_tokens()) {
        return false;
    }

    state.add_tokens(n);
    return true;
}

bool llama_h2o_kv_set_kv(llama_h2o_kv * kv, int32_t il, uint32_t p0, uint32_t p1, const float * k, const float * v) {
    if (!h2o_range_ok(*unwrap(kv), il, p0, p1)) {
        return false;
    }
    h2o_kv_set_k(*unwrap(kv), il, p0, p1, k);
    h2o_kv_set_v(*unwrap(kv), il, p0, p1, v);
    return true;
}

bool llama_h2o_kv_gather_k_memory(llama_h2o_kv * kv, int32_t il, float * dst) {
    return unwrap(kv)->state.layer(il) && h2o_kv_gather_k(*unwrap(kv), il, dst);
}

bool llama_h2o_kv_gather_v_memory(llama_h2o_kv * kv, int32_t il, float * dst) {
    return unwrap(kv)->state.layer(il) && h2o_kv_gather_v(*unwrap(kv), il, dst);
}
