#pragma once

#include "h2o-buffers.h"

#include "ggml.h"

#include <cstdint>

// Host access to a layer's scores, F32 or BF16 [kv_size, n_head_kv]: the attention mass that each position has received.
// bfloat16 halves the memory and rounds after every addition.
class h2o_scores {
public:
    explicit h2o_scores(ggml_tensor * t) : data(t), is_f32(t->type == GGML_TYPE_F32), kv_size(t->ne[0]) {}

    float get(uint32_t head, uint32_t pos) {
        const size_t i = (size_t) head*kv_size + pos;
        return is_f32 ? data.as<float>()[i] : ggml_bf16_to_fp32(data.as<ggml_bf16_t>()[i]);
    }

    void set(uint32_t head, uint32_t pos, float value) {
        const size_t i = (size_t) head*kv_size + pos;
        if (is_f32) {
            data.as<float>()[i] = value;
        } else {
            data.as<ggml_bf16_t>()[i] = ggml_fp32_to_bf16(value);
        }
    }

    void add(uint32_t head, uint32_t pos, float value) {
        set(head, pos, get(head, pos) + value);
    }

    void store() { data.store(); }

private:
    h2o_host_data data;
    bool          is_f32;
    uint32_t      kv_size;
};

// Sums the column sums of the query heads that share a KV head: src [n_head, n_cols] -> dst [n_head_kv, n_cols].
void h2o_scores_reduce_heads(const float * src, uint32_t n_head, uint32_t n_head_kv, uint32_t n_cols, float * dst);
