#include "ggml/attention/attention.h"

#include "ggml-impl.h"

struct ggml_h2o_attn_source_layout ggml_h2o_attn_source_offsets(
        const struct ggml_tensor * k,
        const struct ggml_tensor * v,
        const struct ggml_tensor * rows,
        int64_t                    n) {
    struct ggml_h2o_attn_source_layout res;
    res.k    = 0;
    res.v    = GGML_PAD(res.k + n*k->nb[1], 64);
    res.rows = GGML_PAD(res.v + n*v->nb[1], 64);
    res.size = res.rows + ggml_nbytes(rows);
    return res;
}

static void assert_rows(const struct ggml_tensor * t) {
    GGML_ASSERT((t->type == GGML_TYPE_F32 || ggml_get_type_traits(t->type)->to_float) &&
            "k and v can be converted to F32");
    GGML_ASSERT(t->nb[0] == ggml_type_size(t->type) && "rows of k and v are whole");
    GGML_ASSERT(t->ne[3] == 1 && "k and v have three dimensions");
}

static bool has_shape(const struct ggml_tensor * t, enum ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2) {
    return t->type == type && ggml_is_contiguous(t) && t->ne[0] == ne0 && t->ne[1] == ne1 && t->ne[2] == ne2 &&
        t->ne[3] == 1;
}

static void assert_extra(
        const struct ggml_h2o_attn_extra * extra,
        const struct ggml_tensor           * q,
        const struct ggml_tensor           * k,
        const struct ggml_tensor           * v) {
    const struct ggml_tensor * rows = extra->rows;
    if (!rows) {
        GGML_ASSERT(!extra->source && "it is of extra keys");
        return;
    }
    GGML_ASSERT(extra->offset >= 0 && extra->offset < extra->tile && "the first tile has queries");

    const int64_t n_tiles = (q->ne[1] + extra->offset + extra->tile - 1)/extra->tile;

    GGML_ASSERT(rows->ne[0] > 0 && has_shape(rows, GGML_TYPE_I32, rows->ne[0], n_tiles, k->ne[2]) &&
            "every KV head and tile has a list");
    if (extra->source) {
        GGML_ASSERT(extra->n_source > 0 && "a source has rows");
        GGML_ASSERT(k->nb[2]*k->ne[2] <= k->nb[1] && v->nb[2]*v->ne[2] <= v->nb[1] &&
                "the heads of a row stand together");
        GGML_ASSERT(has_shape(extra->source, GGML_TYPE_I8,
                ggml_h2o_attn_source_offsets(k, v, rows, extra->n_source).size, 1, 1) && "all of its rows");
    }
}

struct ggml_h2o_attn_result ggml_h2o_attn(
        struct ggml_context               * ctx,
        struct ggml_tensor                * q,
        struct ggml_tensor                * k,
        struct ggml_tensor                * v,
        const struct ggml_h2o_attn_params * params) {
    struct ggml_tensor * rows   = params->rows;
    struct ggml_tensor * first  = params->first;
    struct ggml_tensor * limits = params->limits;
    struct ggml_tensor * sinks  = params->sinks;

    const int64_t n_q       = q->ne[1];
    const int64_t n_head    = q->ne[2];
    const int64_t d_v       = v->ne[0];
    const int64_t n_head_kv = k->ne[2];
    const int64_t n_k       = rows ? rows->ne[0] : params->n_k;

    assert_rows(k);
    assert_rows(v);
    GGML_ASSERT(k->ne[0] == q->ne[0] && "a product of q and k");
    GGML_ASSERT(k->ne[1] == v->ne[1] && k->ne[2] == v->ne[2] && "every key has a value");
    GGML_ASSERT(q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && q->ne[3] == 1 && "rows of q are whole");
    GGML_ASSERT(n_head % n_head_kv == 0 && "query heads share KV heads");
    GGML_ASSERT(n_k > 0 && (rows || n_k <= k->ne[1]) && "keys are rows of k");
    if (rows) {
        GGML_ASSERT(rows->type == GGML_TYPE_I32 && rows->nb[0] == sizeof(int32_t) && "a head's rows are contiguous");
        GGML_ASSERT(rows->ne[1] == n_head_kv && ggml_is_matrix(rows) && "each head has rows");
    }
    GGML_ASSERT((!first || has_shape(first, GGML_TYPE_I32, n_k, 1, 1)) && "each key has a first query");
    GGML_ASSERT((!limits || has_shape(limits, GGML_TYPE_I32, n_q, 1, 1)) && "each query has a limit");
    GGML_ASSERT((!limits || params->sums) && "limits are of sums");
    GGML_ASSERT((!sinks || has_shape(sinks, GGML_TYPE_F32, n_head, 1, 1)) && "each head has a sink");
    GGML_ASSERT(params->softcap >= 0.0f && "0 is none");
    assert_extra(&params->extra, q, k, v);

    const int64_t n_each  = params->sums == GGML_H2O_ATTN_QUERY_SUMS ? n_q : 1;
    const int64_t n_o     = d_v*n_head*n_q;
    const int64_t n_sums  = params->sums ? n_k*n_head_kv*n_each : 0;
    const int64_t n_state = n_q*n_head;

    struct ggml_tensor * result = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n_o + n_sums + 2*n_state);

    ggml_set_op_params_f32(result, 0, params->scale);
    ggml_set_op_params_f32(result, 1, params->softcap);
    ggml_set_op_params_i32(result, 2, params->sums);
    ggml_set_op_params_i32(result, 3, (int32_t) n_k);
    ggml_set_op_params_i32(result, 4, params->extra.tile);
    ggml_set_op_params_i32(result, 5, params->extra.offset);
    ggml_set_op_params_i32(result, 6, params->extra.n_source);

    result->op     = GGML_OP_H2O_ATTN;
    result->src[0] = q;
    result->src[1] = k;
    result->src[2] = v;
    result->src[3] = rows;
    result->src[4] = first;
    result->src[5] = limits;
    result->src[6] = params->extra.rows;
    result->src[7] = params->extra.source;
    result->src[8] = sinks;

    const size_t number    = sizeof(float);
    const size_t size_o    = n_o*number;
    const size_t size_sums = n_sums*number;
    const size_t row       = d_v*number;
    const size_t keys      = n_k*number;

    struct ggml_h2o_attn_result views = {
        /*.o    =*/ ggml_view_3d(ctx, result, d_v, n_head, n_q, row, n_head*row, 0),
        /*.sums =*/ n_sums ? ggml_view_3d(ctx, result, n_k, n_head_kv, n_each, keys, n_head_kv*keys, size_o) : NULL,
        /*.m    =*/ ggml_view_3d(ctx, result, 1, n_q, n_head, number, n_q*number, size_o + size_sums),
        /*.l    =*/ ggml_view_3d(ctx, result, 1, n_q, n_head, number, n_q*number, size_o + size_sums + n_state*number),
    };

    return views;
}
