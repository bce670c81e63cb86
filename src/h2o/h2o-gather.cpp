#include "h2o-gather.h"

#include "llama-hparams.h"
#include "llama-model.h"

#include <algorithm>

h2o_gather_indices h2o_gather_build_indices(ggml_context * ctx, const llama_kv_cache_h2o & kv, int32_t il, uint32_t n_memory) {
    const auto & hparams = kv.get_model().hparams;

    h2o_gather_indices res;

    res.k = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, n_memory, hparams.n_head_kv(il));
    ggml_set_input(res.k);
    ggml_format_name(res.k, "h2o_memory_k_l%d", il);

    if (kv.v_is_transposed()) {
        res.v = ggml_new_tensor_3d(ctx, GGML_TYPE_I32, n_memory, hparams.n_embd_head_v(il), hparams.n_head_kv(il));
        ggml_set_input(res.v);
        ggml_format_name(res.v, "h2o_memory_v_l%d", il);
    } else {
        res.v = res.k;
    }

    return res;
}

void h2o_gather_set_indices(const h2o_gather_indices & indices, const llama_kv_cache_h2o & kv, int32_t il) {
    const auto * layer = kv.state.layer(il);

    const size_t M   = kv.state.config.memory_size();
    const size_t n_k = indices.k->ne[0];

    // a memory set's valid positions are at its front; cell i of the cache holds position i
    std::vector<int32_t> data;
    for (uint32_t h = 0; h < layer->n_head_kv; ++h) {
        const int32_t * memory = layer->memory.data() + h*M;
        data.insert(data.end(), memory, memory + n_k);
    }
    ggml_backend_tensor_set(indices.k, data.data(), 0, data.size()*sizeof(data[0]));

    if (indices.v != indices.k) {
        data.clear();
        for (uint32_t h = 0; h < layer->n_head_kv; ++h) {
            const int32_t * memory = layer->memory.data() + h*M;
            for (int64_t i = 0; i < indices.v->ne[1]; ++i) {
                data.insert(data.end(), memory, memory + n_k);
            }
        }
        ggml_backend_tensor_set(indices.v, data.data(), 0, data.size()*sizeof(data[0]));
    }
}

ggml_tensor * h2o_gather_build_k(ggml_context * ctx, const llama_kv_cache_h2o & kv, const h2o_gather_indices & indices, int32_t il) {
    return ggml_get_rows(ctx, kv.keys(ctx, il), indices.k);
}

ggml_tensor * h2o_gather_build_v(ggml_context * ctx, const llama_kv_cache_h2o & kv, const h2o_gather_indices & indices, int32_t il) {
    ggml_tensor * v = kv.values(ctx, il);

    if (!kv.v_is_transposed()) {
        return ggml_cont(ctx, ggml_transpose(ctx, ggml_get_rows(ctx, v, indices.v)));
    }

    // [n_kv, n_embd_head, n_head_kv] -> rows of one element
    ggml_tensor * rows = ggml_view_4d(ctx, v, 1, v->ne[0], v->ne[1], v->ne[2], v->nb[0], v->nb[1], v->nb[2], 0);

    return ggml_reshape_3d(ctx, ggml_get_rows(ctx, rows, indices.v), indices.v->ne[0], indices.v->ne[1], indices.v->ne[2]);
}
