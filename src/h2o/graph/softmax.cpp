#include "h2o/graph/softmax.h"

#include "ggml.h"

#include <cfloat>

ggml_tensor * h2o_constant(ggml_context * ctx, float value, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    ggml_tensor * t = ggml_fill(ctx, ggml_arange(ctx, 0.0f, ne0, 1.0f), value);

    return ggml_repeat_4d(ctx, t, ne0, ne1, ne2, ne3);
}

h2o_softmax_state h2o_softmax_state_build(
        ggml_context *  ctx,
        ggml_tensor  *  kq,
        float           scale,
        ggml_tensor  *  v,
        ggml_tensor  ** weights) {
    h2o_softmax_state res;

    res.m = ggml_scale(ctx, ggml_max_rows(ctx, kq), scale);

    // a sink without weight: a row of -inf gives zeros instead of NaN, other rows do not change
    ggml_tensor * p = ggml_soft_max_ext(ctx, kq, nullptr, scale, 0.0f);
    ggml_soft_max_add_sinks(p, h2o_constant(ctx, -FLT_MAX, kq->ne[2]));

    // the weight of the largest logit is exp(0)/l: l = 1/p_max, written such that p_max = 0 gives 0 and NaN gives NaN
    ggml_tensor * p_max = ggml_max_rows(ctx, p);
    res.l = ggml_div(ctx, p_max, ggml_clamp(ctx, ggml_sqr(ctx, p_max), FLT_MIN, 1.0f));

    // Vulkan would round non-contiguous tensors to float16. A transposed row may count as contiguous.
    if (ggml_is_transposed(v) || !ggml_is_contiguous(v)) {
        v = ggml_cont(ctx, v);
    }
    res.o = ggml_mul_mat(ctx, v, p);
    ggml_prec_set_acc(res.o, GGML_PREC_F32);

    *weights = p;

    return res;
}

h2o_softmax_state h2o_softmax_state_fuse(
        ggml_context            *  ctx,
        const h2o_softmax_state &  a,
        const h2o_softmax_state &  b,
        ggml_tensor             ** share) {
    h2o_softmax_state res;

    res.m = ggml_max_rows(ctx, ggml_concat(ctx, a.m, b.m, 0));

    ggml_tensor * w_a = ggml_mul(ctx, ggml_exp(ctx, ggml_sub(ctx, a.m, res.m)), a.l);
    ggml_tensor * w_b = ggml_mul(ctx, ggml_exp(ctx, ggml_sub(ctx, b.m, res.m)), b.l);

    res.l = ggml_add(ctx, w_a, w_b);

    ggml_tensor * f_a = ggml_div(ctx, w_a, res.l);

    // (w_a*o_a + w_b*o_b)/l with one product, since products that repeat a row's factor are slow on the CPU
    res.o = ggml_add(ctx, b.o, ggml_mul(ctx, ggml_sub(ctx, a.o, b.o), f_a));

    if (share) {
        *share = f_a;
    }

    return res;
}

ggml_tensor * h2o_column_sums_build(ggml_context * ctx, ggml_tensor * weights, int64_t n_head_kv, ggml_tensor * share) {
    const int64_t n_k = weights->ne[0];
    const int64_t n_q = weights->ne[1]*weights->ne[2]/n_head_kv; // of all query heads of a KV head
    const int64_t n_c = weights->ne[3];

    weights = ggml_reshape_4d(ctx, weights, n_k, n_q, n_head_kv, n_c);

    share   = share ? ggml_reshape_4d(ctx, share, 1, n_q, n_head_kv, n_c) :
            h2o_constant(ctx, 1.0f, 1, n_q, n_head_kv, n_c);

    ggml_tensor * sums = ggml_out_prod(ctx, weights, share);

    return ggml_reshape_3d(ctx, sums, n_k, n_head_kv, n_c);
}
