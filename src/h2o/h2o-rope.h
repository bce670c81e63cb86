#pragma once

#include <cstdint>
#include <vector>

struct ggml_tensor;

// The rotation that RoPE gives to the keys of a layer, to take it back.
class h2o_rope {
public:
    // of the RoPE that made k, a node of the layer's graph, if there is one; for up to n_max rows
    h2o_rope(const ggml_tensor * k, uint32_t n_max);

    bool operator==(const h2o_rope & other) const;

    // Turns the i-th row of k [n, n_head, d] back by i positions: then it is as if RoPE had turned all rows alike.
    void align(float * k, uint32_t n, uint32_t n_head, uint32_t d);

private:
    void make_angles();

    uint32_t n_max;

    bool is_interleaved = false; // pairs are (2j, 2j + 1), else (j, j + n_dims/2)
    int  n_dims         = 0;     // 0: no rotation

    int   n_ctx_orig  = 0;
    float freq_base   = 0.0f;
    float freq_scale  = 0.0f;
    float ext_factor  = 0.0f;
    float attn_factor = 0.0f;
    float beta_fast   = 0.0f;
    float beta_slow   = 0.0f;

    std::vector<float> factors; // of the frequencies, if any

    std::vector<float> cosines; // [n_max, n_dims/2], made when they are needed
    std::vector<float> sines;
};
