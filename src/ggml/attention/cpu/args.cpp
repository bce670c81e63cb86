#include "ggml/attention/cpu/args.h"

#include "ggml-impl.h"

static const int32_t * numbers_of(const ggml_tensor * t) {
    return t ? (const int32_t *) t->data : nullptr;
}

h2o_attn_extra::h2o_attn_extra(const ggml_tensor * dst) : n(1), size(dst->src[0]->ne[1]),
        first(numbers_of(dst->src[7])) {
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
        const auto    offsets  = ggml_h2o_attn_source_offsets(&k, &v, n_source);

        own     = (const uint32_t *) ((const char *) source->data + offsets.own);
        n_own   = h2o_ceil_div(n_source, 32);
        k.data  = (char *) source->data + offsets.k;
        v.data  = (char *) source->data + offsets.v;
        k.ne[1] = n_source;
        v.ne[1] = n_source;
    }
}

h2o_attn_args::h2o_attn_args(const ggml_tensor * dst)
    : q(dst->src[0]), k(dst->src[1]), v(dst->src[2]), extra(dst), rows(dst->src[3]), first(numbers_of(dst->src[4])),
      limits(numbers_of(dst->src[5])), sinks((const float *) numbers_of(dst->src[9])) {
    const int kind = ggml_get_op_params_i32(dst, 2);

    scale           = ggml_get_op_params_f32(dst, 0);
    softcap         = ggml_get_op_params_f32(dst, 1);
    has_sinks       = sinks;
    has_column_sums = kind == GGML_H2O_ATTN_COLUMN_SUMS;
    has_query_sums  = kind == GGML_H2O_ATTN_QUERY_SUMS;

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
    m    = sums + n_k*n_head_kv*(has_query_sums ? n_q : has_column_sums ? n_block : 0);
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

bool h2o_attn_args::has_key(int64_t h, int32_t row) const {
    if (extra.own) {
        return extra.own[h*extra.n_own + row/32] >> row%32 & 1;
    }
    const int32_t * list = rows_of(h, 0).list;
    if (!list) {
        return row < n_k;
    }
    for (int64_t n = n_k; n > 1; ) { // no branch depends on the numbers
        const int64_t half = n/2;
        list += list[half] <= row ? half : 0;
        n -= half;
    }
    return *list == row;
}
