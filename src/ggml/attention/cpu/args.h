#pragma once

#include "ggml/attention/attention.h"

#include <algorithm>
#include <cstring>

constexpr int64_t h2o_attn_ceil_div(int64_t a, int64_t b) {
    return (a + b - 1)/b;
}

// Cuts pieces off a work buffer.
struct h2o_attn_take {
    float * next;

    float * operator()(int64_t n) {
        float * res = next;
        next += n;
        return res;
    }
};

// The arguments of ggml_h2o_attn, and where its results go.
struct h2o_attn_args {
    explicit h2o_attn_args(const ggml_tensor * dst)
        : q(dst->src[0]), k(dst->src[1]), v(dst->src[2]), rows(dst->src[3]),
          first(dst->src[4] ? (const int32_t *) dst->src[4]->data : nullptr), limits(dst->src[5]) {
        memcpy(&scale, dst->op_params, sizeof(scale));
        has_sums       = dst->op_params[1] != GGML_H2O_ATTN_NO_SUMS;
        has_query_sums = dst->op_params[1] == GGML_H2O_ATTN_QUERY_SUMS;

        d_k       = q->ne[0];
        n_q       = q->ne[1];
        n_head    = q->ne[2];
        n_block   = q->ne[3];
        d_v       = v->ne[0];
        n_k       = rows->ne[0];
        n_head_kv = rows->ne[1];
        group     = n_head/n_head_kv;

        o    = (float *) dst->data;
        sums = o    + d_v*n_head*n_q*n_block;
        m    = sums + (has_sums ? n_k*n_head_kv*(has_query_sums ? n_q : n_block) : 0);
        l    = m    + n_q*n_head*n_block;
    }

    const ggml_tensor * q;
    const ggml_tensor * k;
    const ggml_tensor * v;
    const ggml_tensor * rows;
    const int32_t     * first;  // [n_k] or NULL
    const ggml_tensor * limits; // or NULL

    float scale;
    bool  has_sums;
    bool  has_query_sums; // each query's own

    int64_t d_k, d_v, n_q, n_head, n_head_kv, n_block, n_k;
    int64_t group; // query heads of a KV head

    // results
    float * o;
    float * sums;
    float * m;
    float * l;

    // A KV head's rows are numbered by query, then by head of the group.

    // the first keys, those that the row sees
    int64_t n_visible(int64_t row) const { return first ? std::upper_bound(first, first + n_k, row/group) - first : n_k; }

    // the first keys, those whose sums count the row
    int64_t n_counted(int64_t row, int64_t h, int64_t block) const {
        if (!limits) {
            return n_k;
        }
        const int32_t * idx = rows_of(h, block);
        return std::upper_bound(idx, idx + n_k, ((const int32_t *) limits->data)[block*n_q + row/group]) - idx;
    }

    const int32_t * rows_of(int64_t h, int64_t block) const {
        return (const int32_t *) ((const char *) rows->data + h*rows->nb[1] + block*rows->nb[2]);
    }

    const float * q_of(int64_t row, int64_t h, int64_t block) const {
        return (const float *) ((const char *) q->data + row/group*q->nb[1] + (h*group + row%group)*q->nb[2] + block*q->nb[3]);
    }

    void scaled_q(int64_t row, int64_t h, int64_t block, float * dst) const {
        const float * src = q_of(row, h, block);
        for (int64_t i = 0; i < d_k; ++i) {
            dst[i] = scale*src[i];
        }
    }

    void store(int64_t row, int64_t h, int64_t block, const float * row_o, float row_m, float row_l) const {
        const int64_t i    = row/group;
        const int64_t head = h*group + row%group;

        memcpy(o + ((block*n_q + i)*n_head + head)*d_v, row_o, d_v*sizeof(float));
        m[(block*n_head + head)*n_q + i] = row_m;
        l[(block*n_head + head)*n_q + i] = row_l;
    }
};
