#include "h2o/store/key-index.h"

#include <stdexcept>
#include <string>

static constexpr ggml_type INDEX_TYPE = GGML_TYPE_Q4_0;

h2o_key_index::h2o_key_index(const std::vector<h2o_kv_layer> & layers, uint32_t n_rows, uint32_t n_seq) : n_rows(n_rows), buffers(layers.size()) {
    for (const auto & layer : layers) {
        if (layer.is_dense()) {
            continue;
        }
        const int64_t n_embd_head = layer.k.n_embd;
        if (n_embd_head % ggml_blck_size(INDEX_TYPE) != 0) {
            throw std::invalid_argument("[h2o] retrieval index needs heads whose size is a multiple of " + std::to_string(ggml_blck_size(INDEX_TYPE)) +
                    ", but layer " + std::to_string(layer.il) + " has heads of " + std::to_string(n_embd_head) + ": use retrieval ngrams");
        }
        tensors[layer.il] = buffers.add(layer.device, "h2o_index_l" + std::to_string(layer.il), INDEX_TYPE, n_embd_head*layer.k.n_head, n_rows*n_seq);
    }
    buffers.allocate();
}

ggml_tensor * h2o_key_index::store(ggml_context * ctx, int32_t il, ggml_tensor * k, ggml_tensor * rows) const {
    return ggml_set_rows(ctx, tensors.at(il), ggml_view_2d(ctx, k, k->ne[0]*k->ne[1], k->ne[2], k->nb[2], 0), rows);
}

ggml_tensor * h2o_key_index::keys(ggml_context * ctx, const h2o_kv_layer & layer, uint32_t seq, uint32_t n) const {
    ggml_tensor * t = tensors.at(layer.il);

    return ggml_view_3d(ctx, t, layer.k.n_embd, n, layer.k.n_head, t->nb[1], ggml_row_size(t->type, layer.k.n_embd), seq*n_rows*t->nb[1]);
}

void h2o_key_index::copy(uint32_t from, uint32_t to, uint32_t n) const {
    for (const auto & [il, t] : tensors) {
        h2o_copy_rows(t, from*n_rows, to*n_rows, n);
    }
}
