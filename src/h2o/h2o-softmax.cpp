#include "h2o-softmax.h"

#include "ggml.h"

#include <cfloat>
#include <cmath>

static ggml_tensor * h2o_fill(ggml_context * ctx, float value, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1, int64_t ne3 = 1) {
    return ggml_fill_inplace(ctx, ggml_new_tensor_4d(ctx, GGML_TYPE_F32, ne0, ne1, ne2, ne3), value);
}

// kq with the mask inside, such that scale*result = scale*kq + mask
static ggml_tensor * h2o_apply_mask(ggml_context * ctx, ggml_tensor * kq, ggml_tensor * mask, float scale) {
    if (mask->ne[1] != kq->ne[1]) { // padded
        mask = ggml_view_4d(ctx, mask, mask->ne[0], kq->ne[1], mask->ne[2], mask->ne[3], mask->nb[1], mask->nb[2], mask->nb[3], 0);
    }
    if (mask->type != GGML_TYPE_F32) {
        mask = ggml_cast(ctx, mask, GGML_TYPE_F32);
    }
    if (!ggml_is_contiguous(mask)) {
        mask = ggml_cont(ctx, mask);
    }
    return ggml_add(ctx, kq, ggml_scale(ctx, mask, 1.0f/scale));
}

h2o_softmax_state h2o_softmax_state_build(
        ggml_context *  ctx,
        ggml_tensor  *  kq,
        ggml_tensor  *  mask,
        float           scale,
        ggml_tensor  *  v,
        ggml_tensor  ** weights) {
    if (mask) {
        kq = h2o_apply_mask(ctx, kq, mask, scale);
    }

    h2o_softmax_state res;

    res.m = ggml_scale(ctx, ggml_max_rows(ctx, kq), scale);

    // a sink without weight: a row of -inf gives zeros instead of NaN, other rows do not change
    ggml_tensor * p = ggml_soft_max_ext(ctx, kq, nullptr, scale, 0.0f);
    ggml_soft_max_add_sinks(p, h2o_fill(ctx, -FLT_MAX, kq->ne[2]));

    // the weight of the largest logit is exp(0)/l: l = 1/p_max, written such that p_max = 0 gives 0 and NaN gives NaN
    ggml_tensor * p_max = ggml_max_rows(ctx, p);
    res.l = ggml_div(ctx, p_max, ggml_clamp(ctx, ggml_sqr(ctx, p_max), FLT_MIN, 1.0f));

    if (v->nb[0] != ggml_type_size(v->type)) {
        v = ggml_cont(ctx, v);
    }
    res.o = ggml_mul_mat(ctx, v, p);

    *weights = p;

    return res;
}

h2o_softmax_state h2o_softmax_state_fuse(ggml_context * ctx, const h2o_softmax_state & a, const h2o_softmax_state & b) {
    h2o_softmax_state res;

    res.m = ggml_max_rows(ctx, ggml_concat(ctx, a.m, b.m, 0));

    // two empty blocks: exp(-inf - m) must be 0, so m must be finite here
    ggml_tensor * m = ggml_clamp(ctx, res.m, -FLT_MAX, INFINITY);

    ggml_tensor * w_a = ggml_mul(ctx, ggml_exp(ctx, ggml_sub(ctx, a.m, m)), a.l);
    ggml_tensor * w_b = ggml_mul(ctx, ggml_exp(ctx, ggml_sub(ctx, b.m, m)), b.l);

    res.l = ggml_add(ctx, w_a, w_b);

    // l is 0 or >= 1 but for rounding
    ggml_tensor * l = ggml_clamp(ctx, res.l, FLT_MIN, INFINITY);

    res.o = ggml_add(ctx,
            ggml_mul(ctx, a.o, ggml_div(ctx, w_a, l)),
            ggml_mul(ctx, b.o, ggml_div(ctx, w_b, l)));

    return res;
}

ggml_tensor * h2o_column_sums_build(ggml_context * ctx, ggml_tensor * weights, int64_t n_head_kv) {
    const int64_t n_k = weights->ne[0];
    const int64_t n_q = weights->ne[1]*weights->ne[2]/n_head_kv; // of all query heads of a KV head
    const int64_t n_c = weights->ne[3];

    weights = ggml_reshape_4d(ctx, weights, n_k, n_q, n_head_kv, n_c);

    ggml_tensor * sums = ggml_out_prod(ctx, weights, h2o_fill(ctx, 1.0f, 1, n_q, n_head_kv, n_c));

    return ggml_reshape_3d(ctx, sums, n_k, n_head_kv, n_c);
}
