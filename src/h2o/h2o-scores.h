#pragma once

#include "ggml.h"

#include <cstdint>
#include <vector>

// Accumulated attention mass per KV head and position: [n_head_kv, kv_size], stored as float32 or bfloat16.
// bfloat16 halves the memory and rounds after every addition.
class h2o_scores {
public:
    h2o_scores(ggml_type type, uint32_t n_head_kv, uint32_t kv_size);

    float get(uint32_t head, uint32_t pos) const {
        const size_t i = (size_t) head*kv_size + pos;
        return type == GGML_TYPE_F32 ? f32[i] : ggml_bf16_to_fp32(bf16[i]);
    }

    void set(uint32_t head, uint32_t pos, float value) {
        const size_t i = (size_t) head*kv_size + pos;
        if (type == GGML_TYPE_F32) {
            f32[i] = value;
        } else {
            bf16[i] = ggml_fp32_to_bf16(value);
        }
    }

    void add(uint32_t head, uint32_t pos, float value) {
        set(head, pos, get(head, pos) + value);
    }

    void clear();

    size_t n_bytes() const { return f32.size()*sizeof(f32[0]) + bf16.size()*sizeof(bf16[0]); }

private:
    ggml_type type;
    uint32_t  kv_size;

    std::vector<float>       f32;
    std::vector<ggml_bf16_t> bf16;
};

// Sums the column sums of the query heads that share a KV head: src [n_head, n_cols] -> dst [n_head_kv, n_cols].
void h2o_scores_reduce_heads(const float * src, uint32_t n_head, uint32_t n_head_kv, uint32_t n_cols, float * dst);
