#pragma once

#include "h2o/store/kv-rows.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <array>
#include <cstdint>
#include <map>
#include <vector>

// K or V of a layer, whose rows move, see h2o_kv_rows::move
struct h2o_row_moves {
    h2o_kv_rows rows;

    uint32_t             first;
    std::vector<int32_t> from;
};

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

    ggml_tensor * index    = nullptr; // of keys, which is made anew from row index_to on; NULL: there is none
    size_t        index_to = 0;
    uint32_t      index_rot = 0; // size of the Hadamard matrix; 0: the index has keys as the cache has them
};

// Moves and rotates rows in place. backends: one for each device. Throws std::runtime_error if there is not enough
// memory or a device fails.
class h2o_row_mover {
public:
    h2o_row_mover();

    // By the host or, where it cannot reach them, on their device, which gets only row numbers and moves them before
    // its next computation. Rows that no device can move go through the host.
    void move(const std::vector<ggml_backend_t> & backends, const std::vector<h2o_row_moves> & moves);

    // On the device that holds them. Throws too if it cannot.
    void rotate(const std::vector<ggml_backend_t> & backends, const std::vector<h2o_key_rotation> & rotations);

    // throws if rotate() could not
    static void check(const std::vector<ggml_backend_t> & backends, const std::vector<h2o_key_rotation> & rotations);

private:
    const bool is_on_device; // wherever rows are, for tests

    std::map<ggml_backend_t, ggml_gallocr_ptr> allocators;
};
