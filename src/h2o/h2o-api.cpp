#include "llama-h2o.h"

#include "h2o-attention.h"
#include "llama-memory-h2o.h"

#include "llama-context.h"
#include "llama-hparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include "ggml-cpp.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

// llama_h2o_kv is the C name of h2o_stream
static h2o_stream * unwrap(llama_h2o_kv * kv) {
    return reinterpret_cast<h2o_stream *>(kv);
}

static const h2o_stream * unwrap(const llama_h2o_kv * kv) {
    return reinterpret_cast<const h2o_stream *>(kv);
}

static llama_h2o_kv * wrap(h2o_stream * stream) {
    return reinterpret_cast<llama_h2o_kv *>(stream);
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

bool llama_h2o_kv_can_rewind(const llama_h2o_kv * kv, uint32_t pos) {
    return pos == 0 || unwrap(kv)->sequence.can_rewind(pos);
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

    const auto & parts = unwrap(kv)->profile.t_part_us;
    res.t_gather_us    = parts[H2O_PART_GATHER];
    res.t_attention_us = parts[H2O_PART_ATTENTION];
    res.t_scores_us    = parts[H2O_PART_SCORES];

    return res;
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

const char * llama_h2o_kv_scorer(const llama_h2o_kv * kv, int32_t il) {
    const auto * layer = unwrap(kv)->sequence.layer(il);
    return layer ? layer->scorer->name() : nullptr;
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
        if (row[0] < 0 || row[n - 1] >= (int32_t) sequence.n_tokens() || !ascends) {
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

static bool h2o_range_ok(const h2o_stream & kv, int32_t il, uint32_t p0, uint32_t p1) {
    const auto & sequence = kv.sequence;

    return sequence.layer(il) && p0 <= p1 && p1 <= (sequence.layout.is_compact ? sequence.n_tokens() : sequence.layout.n_rows());
}

bool llama_h2o_kv_get_k(const llama_h2o_kv * kv, int32_t il, uint32_t p0, uint32_t p1, float * dst) {
    if (!h2o_range_ok(*unwrap(kv), il, p0, p1)) {
        return false;
    }
    unwrap(kv)->get_positions(il, unwrap(kv)->k_rows(il), p0, p1, dst);
    return true;
}

bool llama_h2o_kv_get_v(const llama_h2o_kv * kv, int32_t il, uint32_t p0, uint32_t p1, float * dst) {
    if (!h2o_range_ok(*unwrap(kv), il, p0, p1)) {
        return false;
    }
    unwrap(kv)->get_positions(il, unwrap(kv)->v_rows(il), p0, p1, dst);
    return true;
}

//
// stand-alone cache
//

llama_h2o_kv * llama_h2o_kv_init(const llama_model * model, llama_h2o_kv_params params) {
    try {
        const h2o_config config(params.h2o, params.chunk_size);

        h2o_stream::check_model(*model);

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
                throw std::invalid_argument(format("[h2o] the block size of the K or V type does not divide the head size of layer %u", il));
            }
        }

        return wrap(new h2o_stream(*model, params.type_k, params.type_v, /*offload =*/ false, params.kv_size, /*n_seq_max =*/ 1, /*n_batch =*/ 0, config, nullptr));
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
        for (uint32_t h = 0; h < layer.n_head; ++h) {
            float * sum = res.data() + (size_t) (h/(layer.n_head/layer.n_head_kv))*n_cols;
            for (uint32_t i = 0; i < n_cols; ++i) {
                sum[i] += colsum[(size_t) h*n_cols + i];
            }
        }
    }

    return res;
}

bool llama_h2o_kv_init_chunk_scores(llama_h2o_kv * kv, int32_t il, uint32_t start, uint32_t n, const float * colsum, uint32_t n_rows) {
    auto & sequence = unwrap(kv)->sequence;
    auto * layer = sequence.layer(il);
    if (!layer || n < 1 || start > sequence.layout.n_rows() || n > sequence.layout.n_rows() - start) {
        return false;
    }

    const auto rows = h2o_colsum_rows(*layer, colsum, n_rows, n);
    if (rows.empty()) {
        return false;
    }

    sequence.add_chunk_scores(*layer, start, n, rows.data());
    return true;
}

bool llama_h2o_kv_accumulate_memory_scores(llama_h2o_kv * kv, int32_t il, const float * colsum, uint32_t n_rows) {
    auto & sequence = unwrap(kv)->sequence;
    auto * layer = sequence.layer(il);
    if (!layer) {
        return false;
    }

    const auto rows = h2o_colsum_rows(*layer, colsum, n_rows, sequence.config.memory_size());
    if (rows.empty()) {
        return false;
    }

    sequence.add_memory_scores(*layer, rows.data());
    return true;
}

bool llama_h2o_kv_build_memory_set(llama_h2o_kv * kv, int32_t il, uint32_t chunk_end) {
    auto & sequence = unwrap(kv)->sequence;
    auto * layer = sequence.layer(il);
    if (!layer || chunk_end < 1 || chunk_end > sequence.layout.n_rows()) {
        return false;
    }

    sequence.build_memory_set(*layer, chunk_end);
    return true;
}

bool llama_h2o_kv_next_chunk(llama_h2o_kv * kv, uint32_t n) {
    auto & sequence = unwrap(kv)->sequence;
    if (n > sequence.layout.n_rows() - sequence.n_tokens()) {
        return false;
    }

    sequence.end_call(n, /*scored =*/ false);
    return true;
}

bool llama_h2o_kv_set_kv(llama_h2o_kv * kv, int32_t il, uint32_t p0, uint32_t p1, const float * k, const float * v) {
    if (!h2o_range_ok(*unwrap(kv), il, p0, p1)) {
        return false;
    }
    unwrap(kv)->k_rows(il).set(p0, p1, k);
    unwrap(kv)->v_rows(il).set(p0, p1, v);
    return true;
}

// K or V of the memory set [n_head_kv, M, n_embd_head], by the graph that inference uses; padding is zero
static bool h2o_gather(const h2o_stream & stream, int32_t il, bool is_k, float * dst) {
    const auto * layer = stream.sequence.layer(il);
    if (!layer) {
        return false;
    }

    const auto   memory   = stream.sequence.memory(*layer);
    const size_t M        = stream.sequence.config.memory_size();
    const size_t n_memory = std::find(memory.begin(), memory.begin() + M, -1) - memory.begin();

    const h2o_kv_rows storage = is_k ? stream.k_rows(il) : stream.v_rows(il);
    const size_t      n_embd  = storage.n_embd;

    std::fill(dst, dst + layer->n_head_kv*M*n_embd, 0.0f);
    if (n_memory == 0) {
        return true;
    }

    ggml_init_params params = { 16*ggml_tensor_overhead() + ggml_graph_overhead_custom(16, false), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    ggml_tensor * rows = stream.rows(ctx.get(), il, n_memory, 0);
    ggml_tensor * t    = h2o_gather_rows(ctx.get(), is_k ? stream.keys(ctx.get(), il) : stream.values(ctx.get(), il), rows);

    ggml_cgraph * gf = ggml_new_graph_custom(ctx.get(), 16, false);
    ggml_build_forward_expand(gf, t);

    ggml_backend_ptr        backend { ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr) };
    ggml_backend_buffer_ptr buffer  { backend ? ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()) : nullptr };
    if (!buffer || ggml_backend_graph_compute(backend.get(), gf) != GGML_STATUS_SUCCESS) {
        return false;
    }

    for (size_t h = 0; h < layer->n_head_kv; ++h) {
        ggml_backend_tensor_get(t, dst + h*M*n_embd, h*n_memory*n_embd*sizeof(float), n_memory*n_embd*sizeof(float));
    }
    storage.rotate(dst, layer->n_head_kv*M*n_embd);

    return true;
}

bool llama_h2o_kv_gather_k_memory(llama_h2o_kv * kv, int32_t il, float * dst) {
    return h2o_gather(*unwrap(kv), il, true, dst);
}

bool llama_h2o_kv_gather_v_memory(llama_h2o_kv * kv, int32_t il, float * dst) {
    return h2o_gather(*unwrap(kv), il, false, dst);
}
