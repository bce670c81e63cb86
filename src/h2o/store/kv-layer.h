#pragma once

#include "h2o/store/kv-rows.h"

#include "ggml-backend.h"

#include <cstdint>

// K and V of one layer of the model.
struct h2o_kv_layer {
    int32_t  il;
    int32_t  index;  // among the layers that have memory sets; -1: a dense layer, whose row i holds position i
    uint32_t n_head;

    ggml_backend_dev_t device; // where its attention is computed

    h2o_kv_rows k; // of the first sequence
    h2o_kv_rows v;

    // MLA: the rows of K begin with V's
    bool v_is_in_k() const { return v.t == k.t; }

    bool is_dense() const { return index < 0; }
};
