#pragma once

#include "h2o/store/buffers.h"

#include <cstdint>
#include <unordered_map>
#include <vector>

struct llama_model;

// Online-softmax state (m, l, o) of phase 1's intra attention, kept on the layer's device for phase 2.
class h2o_intra {
public:
    struct tensors {
        ggml_tensor * m; // F32 [n_batch, n_head]          row max of the logits
        ggml_tensor * l; // F32 [n_batch, n_head]          sum of exp(logit - m)
        ggml_tensor * o; // F32 [n_embd_head_v*n_head, n_batch] normalised output
    };

    // throws std::runtime_error if there is not enough memory
    h2o_intra(const llama_model & model, const std::vector<uint32_t> & layer_ids, uint32_t n_batch, bool offload);

    const tensors & get(int32_t il) const { return layers.at(il); }

    size_t n_bytes() const;

private:
    std::unordered_map<int32_t, tensors> layers;

    h2o_buffers buffers;
};
