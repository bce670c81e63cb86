#include "ggml/attention/attention.h"

#include "ggml-impl.h"

static void assert_rows(const struct ggml_tensor * t, const struct ggml_tensor * rows) {
    GGML_ASSERT(t->type == GGML_TYPE_F32 || ggml_get_type_traits(t->type)->to_float);
    GGML_ASSERT(t->nb[0] == ggml_type_size(t->type));
    GGML_ASSERT(t->ne[2] == rows->ne[1] && t->ne[3] == 1);
}

static void assert_tiles(const struct ggml_tensor * t, int64_t n_tile_rows, int64_t n_tiles) {
    GGML_ASSERT(t->type == GGML_TYPE_I32 && ggml_is_contiguous(t));
    GGML_ASSERT(t->ne[0] == n_tile_rows && t->ne[1] == n_tiles && ggml_is_matrix(t));
}

struct ggml_h2o_far_parts ggml_h2o_far_offsets(const struct ggml_tensor * k, const struct ggml_tensor * v, int64_t n_far) {
    struct ggml_h2o_far_parts res;
    res.k    = 0;
    res.v    = GGML_PAD(res.k + n_far*k->nb[1], 64);
    res.own  = GGML_PAD(res.v + n_far*v->nb[1], 64);
    res.size = res.own + k->ne[2]*((n_far + 31)/32)*sizeof(uint32_t);
    return res;
}

struct ggml_h2o_attn_result ggml_h2o_attn(
        struct ggml_context * ctx,
        struct ggml_tensor  * q,
        struct ggml_tensor  * k,
        struct ggml_tensor  * v,
        struct ggml_tensor  * rows,
        struct ggml_tensor  * first,
        struct ggml_tensor  * limits,
        struct ggml_tensor  * tile_rows,
        struct ggml_tensor  * tile_first,
        struct ggml_tensor  * tile_last,
        int                   tile_size,
        int                   tile_offset,
        struct ggml_tensor  * far,
        int                   n_far,
        float                 scale,
        int                   sums) {
    const int64_t n_q       = q->ne[1];
    const int64_t n_head    = q->ne[2];
    const int64_t n_block   = q->ne[3];
    const int64_t d_v       = v->ne[0];
    const int64_t n_k       = rows->ne[0];
    const int64_t n_head_kv = rows->ne[1];

    GGML_ASSERT(q->type == GGML_TYPE_F32 && rows->type == GGML_TYPE_I32);
    GGML_ASSERT(q->nb[0] == sizeof(float) && rows->nb[0] == sizeof(int32_t));
    GGML_ASSERT(rows->ne[2] == n_block && rows->ne[3] == 1);
    GGML_ASSERT(!first || (first->type == GGML_TYPE_I32 && ggml_is_contiguous(first)));
    GGML_ASSERT(!first || (first->ne[0] == n_k && ggml_nelements(first) == n_k));
    GGML_ASSERT(sums != GGML_H2O_ATTN_QUERY_SUMS || n_block == 1);
    GGML_ASSERT(!limits || (limits->type == GGML_TYPE_I32 && ggml_is_contiguous(limits) && sums));
    GGML_ASSERT(!limits || (limits->ne[0] == n_q && limits->ne[1] == n_block && ggml_is_matrix(limits)));
    assert_rows(k, rows);
    assert_rows(v, rows);
    GGML_ASSERT(k->ne[0] == q->ne[0] && k->ne[1] == v->ne[1]);
    GGML_ASSERT(n_head % n_head_kv == 0);
    GGML_ASSERT(n_k > 0);
    GGML_ASSERT((tile_rows || !tile_first) && !tile_first == !tile_last);
    GGML_ASSERT(!tile_rows || (n_block == 1 && tile_rows->ne[0] > 0));
    if (tile_rows && !tile_first) {
        GGML_ASSERT(tile_rows->type == GGML_TYPE_I32 && ggml_is_contiguous(tile_rows));
        GGML_ASSERT(tile_rows->ne[1] == n_q && tile_rows->ne[2] == n_head_kv && tile_rows->ne[3] == 1);
        GGML_ASSERT(tile_size == 1 && tile_offset == 0);
    } else if (tile_rows) {
        GGML_ASSERT(tile_offset >= 0 && tile_offset < tile_size);

        const int64_t n_tiles = (n_q + tile_offset + tile_size - 1)/tile_size;
        assert_tiles(tile_rows,  tile_rows->ne[0], n_tiles);
        assert_tiles(tile_first, tile_rows->ne[0], n_tiles);
        assert_tiles(tile_last,  tile_rows->ne[0], n_tiles);
    }

    if (far) {
        GGML_ASSERT(tile_first && far->type == GGML_TYPE_I8 && ggml_is_contiguous(far) && n_far > 0);
        GGML_ASSERT(k->nb[2]*n_head_kv <= k->nb[1] && v->nb[2]*n_head_kv <= v->nb[1]);
        GGML_ASSERT(ggml_nbytes(far) == ggml_h2o_far_offsets(k, v, n_far).size);
    }

    const int64_t n_o     = d_v*n_head*n_q*n_block;
    const int64_t n_each  = sums == GGML_H2O_ATTN_QUERY_SUMS ? n_q : n_block;
    const int64_t n_sums  = sums ? n_k*n_head_kv*n_each : 0;
    const int64_t n_state = n_q*n_head*n_block;

    struct ggml_tensor * result = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n_o + n_sums + 2*n_state);

    ggml_set_op_params_f32(result, 0, scale);
    ggml_set_op_params_i32(result, 1, sums);
    ggml_set_op_params_i32(result, 2, tile_size);
    ggml_set_op_params_i32(result, 3, tile_offset);
    ggml_set_op_params_i32(result, 4, n_far);

    result->op     = GGML_OP_H2O_ATTN;
    result->src[0] = q;
    result->src[1] = k;
    result->src[2] = v;
    result->src[3] = rows;
    result->src[4] = first;
    result->src[5] = limits;
    result->src[6] = tile_rows;
    result->src[7] = tile_first;
    result->src[8] = tile_last;
    result->src[9] = far;

    const size_t size = sizeof(float);

    struct ggml_h2o_attn_result views = {
        /*.o    =*/ ggml_view_4d(ctx, result, d_v, n_head, n_q, n_block, d_v*size, d_v*n_head*size, d_v*n_head*n_q*size, 0),
        /*.sums =*/ sums ? ggml_view_3d(ctx, result, n_k, n_head_kv, n_each, n_k*size, n_k*n_head_kv*size, n_o*size) : NULL,
        /*.m    =*/ ggml_view_4d(ctx, result, 1, n_q, n_head, n_block, size, n_q*size, n_q*n_head*size, (n_o + n_sums)*size),
        /*.l    =*/ ggml_view_4d(ctx, result, 1, n_q, n_head, n_block, size, n_q*size, n_q*n_head*size, (n_o + n_sums + n_state)*size),
    };

    return views;
}
