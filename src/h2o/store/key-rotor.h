#pragma once

#include "h2o/store/kv-rows.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <array>
#include <cstdint>
#include <map>
#include <vector>

// How RoPE rotates a layer's keys: the parameters of ggml's operator.
struct h2o_rope {
    std::array<int32_t, GGML_MAX_OP_PARAMS/sizeof(int32_t)> params;

    ggml_tensor * factors; // of the frequencies; NULL: none
};

// Rows of keys that RoPE rotates again, each KV head's by its own angles.
struct h2o_key_rotation {
    h2o_kv_rows rows;
    h2o_rope    rope;

    uint32_t from; // rows [from, from + n) become [to, to + n)
    uint32_t to;

    std::vector<int32_t> shifts; // [n, n_head]: by how many positions
};

// Rotates keys on the device that holds them.
class h2o_key_rotor {
public:
    // backends: one for each device. Throws std::runtime_error if none can, or one fails, or without memory.
    void rotate(const std::vector<ggml_backend_t> & backends, const std::vector<h2o_key_rotation> & rotations);

    // throws if rotate() could not
    static void check(const std::vector<ggml_backend_t> & backends, const std::vector<h2o_key_rotation> & rotations);

private:
    std::map<ggml_backend_t, ggml_gallocr_ptr> allocators;
};
