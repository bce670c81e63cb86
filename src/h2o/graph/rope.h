#pragma once

#include "ggml/keys/keys.h"

#include <cstddef>
#include <cstdint>
#include <vector>

struct ggml_tensor;

// What comes before k, the node of a layer's graph whose rows go to the cache.
enum h2o_rope_kind {
    H2O_ROPE_NONE,   // no RoPE
    H2O_ROPE_LAST,   // RoPE, and nothing after it
    H2O_ROPE_HIDDEN, // RoPE, and then a norm, say, or RoPE of a part: it cannot be taken back
};

h2o_rope_kind h2o_find_rope(const ggml_tensor * k);

// The rotation that RoPE gives to the keys of a layer, to take it back.
class h2o_rope {
public:
    // of the RoPE that comes last before k, if there is one
    h2o_rope(const ggml_tensor * k, uint32_t n_max);

    // whether the RoPE that made k is this one
    bool is_of(const ggml_tensor * k) const;

    // Says how keys that are i, i + 1, ... positions after the first of a chunk are turned against it; all are below n_max.
    void set_angles(ggml_h2o_keys & keys, uint32_t i) const;

private:
    void make_angles(const ggml_tensor * rope, size_t n);

    int32_t             op_params[16] = {};
    const ggml_tensor * factors       = nullptr; // of the frequencies

    bool is_interleaved = false; // pairs are (2j, 2j + 1), else (j, j + n_dims/2)
    int  n_dims         = 0;     // 0: no rotation

    std::vector<float> cosines; // [n_max, n_dims/2]
    std::vector<float> sines;
};
