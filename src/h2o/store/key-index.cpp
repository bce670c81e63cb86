#include "h2o/store/key-index.h"

#include "llama-hparams.h"
#include "llama-impl.h"
#include "llama-io.h"
#include "llama-model.h"

#include <stdexcept>
#include <string>

static constexpr ggml_type INDEX_TYPE = GGML_TYPE_Q4_0;

h2o_key_index::h2o_key_index(const llama_model & model, const std::vector<int32_t> & layer_ids, uint32_t n_rows, uint32_t n_seq_max, bool offload)
    : n_rows(n_rows), buffers(layer_ids.size()) {
    for (const int32_t il : layer_ids) {
        const int64_t n_embd_head = model.hparams.n_embd_head_k(il);
        if (n_embd_head % ggml_blck_size(INDEX_TYPE) != 0) {
            throw std::invalid_argument(format("[h2o] retrieval index needs heads whose size is a multiple of %d, but layer %d has heads of %d: "
                        "use retrieval ngrams", (int) ggml_blck_size(INDEX_TYPE), il, (int) n_embd_head));
        }
        layers[il] = {
            buffers.add(h2o_layer_device(model, il, offload), "h2o_index_l" + std::to_string(il), INDEX_TYPE, n_embd_head*model.hparams.n_head_kv(il), (int64_t) n_rows*n_seq_max),
            n_embd_head,
        };
    }
    buffers.allocate();
}

ggml_tensor * h2o_key_index::store(ggml_context * ctx, int32_t il, ggml_tensor * k, ggml_tensor * rows) const {
    return ggml_set_rows(ctx, layers.at(il).keys, ggml_view_2d(ctx, k, k->ne[0]*k->ne[1], k->ne[2], k->nb[2], 0), rows);
}

ggml_tensor * h2o_key_index::keys(ggml_context * ctx, int32_t il, uint32_t id, uint32_t n) const {
    const auto & [t, n_embd_head] = layers.at(il);

    return ggml_view_3d(ctx, t, n_embd_head, n, t->ne[0]/n_embd_head, t->nb[1], ggml_row_size(t->type, n_embd_head), id*n_rows*t->nb[1]);
}

void h2o_key_index::write(llama_io_write_i & io, uint32_t id, uint32_t n) const {
    for (const auto & [il, layer] : layers) {
        io.write_tensor(layer.keys, id*n_rows*layer.keys->nb[1], n*layer.keys->nb[1]);
    }
}

void h2o_key_index::read(llama_io_read_i & io, uint32_t id, uint32_t n) {
    for (const auto & [il, layer] : layers) {
        io.read_tensor(layer.keys, id*n_rows*layer.keys->nb[1], n*layer.keys->nb[1]);
    }
}

void h2o_key_index::copy(uint32_t from, uint32_t to, uint32_t n) {
    for (const auto & [il, layer] : layers) {
        h2o_copy_rows(layer.keys, from*n_rows, to*n_rows, n);
    }
}
