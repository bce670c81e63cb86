#include "h2o-scores.h"

#include <algorithm>

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
