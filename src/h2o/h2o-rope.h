#pragma once

#include <cstdint>
#include <vector>

struct ggml_tensor;

// The rotation that RoPE gives to the keys of a layer, to take it back.
class h2o_rope {
public:
    // no rotation
    h2o_rope() = default;

    // of the RoPE that is the last step but rotations of all dimensions on the way to k, a node of the layer's graph
    explicit h2o_rope(const ggml_tensor * k);

    // Turns the i-th row of k [n, d] back by i positions: then it is as if RoPE had turned all rows alike.
    void align(float * k, uint32_t n, uint32_t d);

private:
    void make_angles(uint32_t n);

    bool is_interleaved = false; // pairs are (2j, 2j + 1), else (j, j + n_dims/2)
    int  n_dims         = 0;     // 0: no rotation

    int   n_ctx_orig;
    float freq_base;
    float freq_scale;
    float ext_factor;
    float attn_factor;
    float beta_fast;
    float beta_slow;

    std::vector<float> factors; // of the frequencies, if any

    std::vector<float> cosines; // [positions, n_dims/2]
    std::vector<float> sines;
};
