#pragma once

#include "h2o/store/buffers.h"
#include "h2o/store/kv-layer.h"

#include <cstdint>
#include <map>
#include <vector>

// Phase 1's intra attention, kept on the layer's device for phase 2.
class h2o_intra {
public:
    struct tensors {
        ggml_tensor * lse; // F32 [n_head, n_batch] log of the sum of exp(logit)
        ggml_tensor * o;   // F32 [n_embd_head_v*n_head, n_batch]
    };

    // throws std::runtime_error if there is not enough memory
    h2o_intra(const std::vector<h2o_kv_layer> & layers, uint32_t n_batch);

    const tensors & get(int32_t il) const { return states.at(il); }

    size_t n_bytes() const;

private:
    std::map<int32_t, tensors> states;

    h2o_buffers buffers;
};
