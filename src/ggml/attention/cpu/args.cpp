#include "ggml/attention/cpu/args.h"

#include "ggml-impl.h"

#include <cstring>

static const int32_t * numbers_of(const ggml_tensor * t) {
    return t ? (const int32_t *) t->data : nullptr;
}

h2o_attn_further::h2o_attn_further(const ggml_tensor * dst) : n(1), size(dst->src[0]->ne[1]), first(numbers_of(dst->src[7])) {
    const ggml_tensor * t = dst->src[6];
    if (!t) {
        return;
    }
    k        = *dst->src[1];
    v        = *dst->src[2];
    rows     = (const int32_t *) t->data;
    n_rows   = t->ne[0];
    n        = t->ne[1];
    of_heads = t->ne[2] > 1;
    size     = ggml_get_op_params_i32(dst, 4);
    offset   = ggml_get_op_params_i32(dst, 5);
    if (const ggml_tensor * source = dst->src[8]) {
        const int64_t n_source = ggml_get_op_params_i32(dst, 6);
        const auto    at       = ggml_h2o_attn_source_offsets(&k, &v, n_source);

        has_source = true;
        own        = (const uint32_t *) ((const char *) source->data + at.own);
        n_own      = h2o_ceil_div(n_source, 32);
        k.data     = (char *) source->data + at.k;
        v.data     = (char *) source->data + at.v;
        k.ne[1]    = n_source;
        v.ne[1]    = n_source;
    }
}

h2o_attn_args::h2o_attn_args(const ggml_tensor * dst)
    : q(dst->src[0]), k(dst->src[1]), v(dst->src[2]), further(dst), rows(dst->src[3]), first(numbers_of(dst->src[4])),
      limits(numbers_of(dst->src[5])), sinks((const float *) numbers_of(dst->src[9])) {
    scale          = ggml_get_op_params_f32(dst, 0);
    softcap        = ggml_get_op_params_f32(dst, 1);
    has_sinks      = sinks;
    has_sums       = ggml_get_op_params_i32(dst, 2) != GGML_H2O_ATTN_NO_SUMS;
    has_query_sums = ggml_get_op_params_i32(dst, 2) == GGML_H2O_ATTN_QUERY_SUMS;

    d_k       = q->ne[0];
    n_q       = q->ne[1];
    n_head    = q->ne[2];
    n_block   = q->ne[3];
    d_v       = v->ne[0];
    n_k       = ggml_get_op_params_i32(dst, 3);
    n_head_kv = k->ne[2];
    group     = n_head/n_head_kv;

    o    = (float *) dst->data;
    sums = o    + d_v*n_head*n_q*n_block;
    m    = sums + (has_sums ? n_k*n_head_kv*(has_query_sums ? n_q : n_block) : 0);
    l    = m    + n_q*n_head*n_block;
}

int64_t h2o_attn_args::n_counted(int64_t row, int64_t h, int64_t block) const {
    if (!limits) {
        return n_k;
    }
    const int32_t   limit = limits[block*n_q + row/group];
    const int32_t * list  = rows_of(h, block).list;

    return list ? std::upper_bound(list, list + n_k, limit) - list : std::clamp<int64_t>((int64_t) limit + 1, 0, n_k);
}

void h2o_attn_args::scaled_q(int64_t row, int64_t h, int64_t block, float * dst) const {
    const float * src = q_of(row, h, block);
    for (int64_t i = 0; i < d_k; ++i) {
        dst[i] = scale*src[i];
    }
}

void h2o_attn_args::store(int64_t row, int64_t h, int64_t block, const float * row_o, float row_m, float row_l) const {
    const int64_t i    = row/group;
    const int64_t head = h*group + row%group;

    memcpy(o + ((block*n_q + i)*n_head + head)*d_v, row_o, d_v*sizeof(float));
    m[(block*n_head + head)*n_q + i] = row_m;
    l[(block*n_head + head)*n_q + i] = row_l;
}
