// The stand-alone cache of the C interface.

#include "h2o/llama/api.h"
#include "h2o/graph/attention.h"

#include "llama-hparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include "ggml-cpp.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

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
    if (!unwrap(kv)->sequence.layer(il) || p0 > p1 || p1 > unwrap(kv)->sequence.layout.n_rows()) {
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
