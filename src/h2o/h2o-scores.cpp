#include "h2o-scores.h"

#include <algorithm>

h2o_scores::h2o_scores(ggml_type type, uint32_t n_head_kv, uint32_t kv_size) : type(type), kv_size(kv_size) {
    const size_t n = (size_t) n_head_kv*kv_size;
    if (type == GGML_TYPE_F32) {
        f32.resize(n);
    } else {
        bf16.resize(n);
    }
}

void h2o_scores::clear() {
    std::fill(f32.begin(), f32.end(), 0.0f);
    std::fill(bf16.begin(), bf16.end(), ggml_bf16_t { 0 });
}

void h2o_scores_reduce_heads(const float * src, uint32_t n_head, uint32_t n_head_kv, uint32_t n_cols, float * dst) {
    const uint32_t n_group = n_head/n_head_kv;

    std::fill(dst, dst + (size_t) n_head_kv*n_cols, 0.0f);

    for (uint32_t h = 0; h < n_head; ++h) {
        const float * src_row = src + (size_t) h*n_cols;
              float * dst_row = dst + (size_t) (h/n_group)*n_cols;
        for (uint32_t i = 0; i < n_cols; ++i) {
            dst_row[i] += src_row[i];
        }
    }
}
