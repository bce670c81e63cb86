#include "h2o/store/key-index.h"

#include "h2o/config/refusal.h"
#include "h2o/store/kv-rows.h"

#include "llama-impl.h"

#include <string>

static constexpr ggml_type INDEX_TYPE = GGML_TYPE_Q4_0;

// the cache's own rows: of 8 bits and turned, as only the CPU reads them
static bool are_in_cache(const h2o_kv_layer & layer, const h2o_layout & layout) {
    return !layout.is_compact && layer.k.t->type == GGML_TYPE_Q8_0 && layer.k.n_rot > 0 &&
            ggml_backend_dev_type(layer.device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

h2o_key_index::h2o_key_index(const std::vector<h2o_kv_layer> & layers, const h2o_layout & layout, uint32_t n_seq) :
        n_rows(layout.kv_size), buffers(2*layers.size()) {
    const int64_t block = ggml_blck_size(INDEX_TYPE);

    for (const auto & layer : layers) {
        if (layer.is_dense() || are_in_cache(layer, layout)) {
            continue;
        }
        const int64_t n_embd_head = layer.k.n_embd;
        if (n_embd_head % block != 0) {
            throw h2o_refusal(h2o_reason::LOOKUP,
                    "[h2o] lookup by the index of keys needs heads whose size is a multiple of " + std::to_string(block) +
                    ", but layer " + std::to_string(layer.il) + " has heads of " + std::to_string(n_embd_head) +
                            ": use lookup_budget 0");
        }
        auto * buft = ggml_backend_dev_buffer_type(layer.device);
        tensors[layer.il] = buffers.add(buft, "h2o_index_l" + std::to_string(layer.il), INDEX_TYPE,
                n_embd_head*layer.k.n_head, n_rows*n_seq);
        if (layer.k.n_rot == 0) {
            rotations[layer.il] = buffers.add(buft, "h2o_index_rotation_l" + std::to_string(layer.il),
                    GGML_TYPE_F32, block, block);
        }
    }
    buffers.allocate("the index of keys");

    const auto matrix = h2o_hadamard(block);
    for (const auto & [il, t] : rotations) {
        ggml_backend_tensor_set(t, matrix.data(), 0, ggml_nbytes(t));
    }
}

ggml_tensor * h2o_key_index::rotated(ggml_context * ctx, int32_t il, ggml_tensor * x) const {
    return rotations.count(il) > 0 ? llama_mul_mat_hadamard(ctx, x, rotations.at(il)) : x;
}

ggml_tensor * h2o_key_index::rotated_queries(ggml_context * ctx, int32_t il, ggml_tensor * q) const {
    // the heads of a token lie together
    const auto swapped = [&](ggml_tensor * x) { return ggml_permute(ctx, x, 0, 2, 1, 3); };

    return swapped(rotated(ctx, il, swapped(q)));
}

ggml_tensor * h2o_key_index::store(ggml_context * ctx, int32_t il, ggml_tensor * k, ggml_tensor * rows) const {
    k = rotated(ctx, il, k);

    return ggml_set_rows(ctx, tensors.at(il), ggml_view_2d(ctx, k, k->ne[0]*k->ne[1], k->ne[2], k->nb[2], 0), rows);
}

ggml_tensor * h2o_key_index::keys(ggml_context * ctx, const h2o_kv_layer & layer, uint32_t seq, uint32_t n) const {
    ggml_tensor * t = has(layer.il) ? tensors.at(layer.il) : layer.k.t;

    return ggml_view_3d(ctx, t, layer.k.n_embd, n, layer.k.n_head, t->nb[1], ggml_row_size(t->type, layer.k.n_embd),
            seq*n_rows*t->nb[1]);
}

uint32_t h2o_key_index::rotation_size(int32_t il) const {
    return rotations.count(il) > 0 ? rotations.at(il)->ne[0] : 0;
}

void h2o_key_index::release(uint32_t seq) const {
    for (const auto & [il, t] : tensors) {
        h2o_release_rows(t, seq*n_rows, (seq + 1)*n_rows);
    }
}

void h2o_key_index::copy(uint32_t from, uint32_t to, uint32_t n) const {
    for (const auto & [il, t] : tensors) {
        h2o_copy_rows(t, from*n_rows, t, to*n_rows, n);
    }
}
