#pragma once

#include "h2o/store/buffers.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <cstdint>
#include <vector>

// Scores and memory set of one layer, on the layer's device.
struct h2o_layer {
    uint32_t index; // among the sequence's layers
    int32_t  il;    // in the model
    uint32_t n_head;
    uint32_t n_head_kv;

    ggml_backend_dev_t device;

    ggml_tensor * scores; // F32 [n_rows, n_head_kv]

    // the current memory set: positions [n_head_kv, M], ascending, padded at the front with -1
    std::vector<int32_t> memory;

    // I32 [M + S, n_head_kv]: the rows of the current memory set, padded as it is, then those of the chunk after it: what that
    // chunk attends to is a view, and stays at the same place from chunk to chunk
    ggml_tensor * rows;

    uint32_t n_built = 0; // memory sets built so far

    std::vector<int32_t> from; // where rows of K and V come from that are to be moved on the device, see h2o_sequence::move_on_devices

    // F32 [M + S, (MAX_PENDING + 1)*n_head_kv]: what generated tokens give to the scores of `rows`, see h2o-sequence-pending.cpp.
    // nullptr: they are not scored
    ggml_tensor * pending = nullptr;
};

// Host access to a layer's scores.
class h2o_scores {
public:
    explicit h2o_scores(const h2o_layer & layer) : data(layer.scores), n_rows(layer.scores->ne[0]) {}

    float & at(uint32_t head, uint32_t row) { return data.as<float>()[(size_t) head*n_rows + row]; }

    void store() { data.store(); }

private:
    h2o_host_data data;
    uint32_t      n_rows;
};
