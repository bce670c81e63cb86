#pragma once

// The arguments of ggml_h2o_attn, and where its results go, for the CPU and for CUDA.

#include "ggml-impl.h"

#include "ggml/attention/attention.h"

#ifdef __CUDACC__
#define H2O_ATTN_INLINE __host__ __device__ __forceinline__
#else
#define H2O_ATTN_INLINE
#endif

// The lists of ggml_h2o_attn_extra. I is the type of sizes.
template <typename I>
struct h2o_attn_lists {
    explicit h2o_attn_lists(const ggml_tensor * dst);

    const int32_t * rows = nullptr; // [n_head_kv][n][n_rows] or NULL
    I n_rows = 0;                   // of a list
    I n      = 1;                   // lists of a head; without any, one tile has all queries
    I tile;                         // queries
    I offset = 0;

    // where the rows are
    void * k;
    void * v;

    H2O_ATTN_INLINE const int32_t * rows_of(I list, I h) const {
        return rows + ((int64_t) h*n + list)*n_rows;
    }

    // a list's queries
    H2O_ATTN_INLINE I start(I list) const {
        const int64_t i = (int64_t) list*tile - offset;
        return i > 0 ? i : 0;
    }
    H2O_ATTN_INLINE I end(I list, I n_q) const {
        const int64_t i = ((int64_t) list + 1)*tile - offset;
        return i < n_q ? i : n_q;
    }
};

// A KV head's rows are numbered by query, then by head of the group.
template <typename I>
struct h2o_attn_args {
    explicit h2o_attn_args(const ggml_tensor * dst);

    I n_q, n_head, n_head_kv, n_k;
    I d_k, d_v;
    I group; // query heads of a KV head

    float scale;
    float softcap;

    ggml_h2o_attn_sums kind_of_sums;

    const char    * q; // strides in bytes
    int64_t         q_stride, q_head_stride;
    const int32_t * rows; // or NULL; its stride in numbers
    int64_t         rows_head_stride;
    const int32_t * first;  // [n_k] or NULL
    const int32_t * limits; // [n_q] or NULL
    const float   * sinks;  // [n_head] or NULL

    h2o_attn_lists<I> extra;

    // results
    float * o;
    float * sums;
    float * m;
    float * l;

    H2O_ATTN_INLINE const float * q_of(I row, I h) const {
        return (const float *) (q + row/group*q_stride + (h*group + row%group)*q_head_stride);
    }

    H2O_ATTN_INLINE const int32_t * rows_of(I h) const { return rows ? rows + h*rows_head_stride : nullptr; }

    // where a row's results are
    H2O_ATTN_INLINE float * o_of(I row, I h) const {
        return o + ((int64_t) row/group*n_head + h*group + row%group)*d_v;
    }
    H2O_ATTN_INLINE int64_t state_index(I row, I h) const {
        return (int64_t) (h*group + row%group)*n_q + row/group;
    }
};

template <typename I>
h2o_attn_lists<I>::h2o_attn_lists(const ggml_tensor * dst)
    : tile(dst->src[0]->ne[1]), k(dst->src[1]->data), v(dst->src[2]->data) {
    const ggml_tensor * t = dst->src[6];
    if (!t) {
        return;
    }
    rows   = (const int32_t *) t->data;
    n_rows = t->ne[0];
    n      = t->ne[1];
    tile   = ggml_get_op_params_i32(dst, 4);
    offset = ggml_get_op_params_i32(dst, 5);
    if (const ggml_tensor * source = dst->src[7]) {
        const auto offsets = ggml_h2o_attn_source_offsets(dst->src[1], dst->src[2], t, ggml_get_op_params_i32(dst, 6));

        k    = (char *) source->data + offsets.k;
        v    = (char *) source->data + offsets.v;
        rows = (const int32_t *) ((const char *) source->data + offsets.rows);
    }
}

template <typename I>
h2o_attn_args<I>::h2o_attn_args(const ggml_tensor * dst) : extra(dst) {
    const auto data_of = [&](int i) { return dst->src[i] ? dst->src[i]->data : nullptr; };

    const ggml_tensor * t = dst->src[0];

    n_q       = t->ne[1];
    n_head    = t->ne[2];
    n_head_kv = dst->src[1]->ne[2];
    n_k       = ggml_get_op_params_i32(dst, 3);
    d_k       = t->ne[0];
    d_v       = dst->src[2]->ne[0];
    group     = n_head/n_head_kv;

    scale        = ggml_get_op_params_f32(dst, 0);
    softcap      = ggml_get_op_params_f32(dst, 1);
    kind_of_sums = (ggml_h2o_attn_sums) ggml_get_op_params_i32(dst, 2);

    q                = (const char *) t->data;
    q_stride         = t->nb[1];
    q_head_stride    = t->nb[2];
    rows             = (const int32_t *) data_of(3);
    rows_head_stride = rows ? dst->src[3]->nb[1]/sizeof(int32_t) : 0;
    first            = (const int32_t *) data_of(4);
    limits           = (const int32_t *) data_of(5);
    sinks            = (const float   *) data_of(8);

    const int64_t n_states = (int64_t) n_q*n_head;
    const int64_t n_each   = kind_of_sums == GGML_H2O_ATTN_QUERY_SUMS ? n_q : kind_of_sums ? 1 : 0;

    o    = (float *) dst->data;
    sums = o    + n_states*d_v;
    m    = sums + n_each*n_k*n_head_kv;
    l    = m    + n_states;
}
