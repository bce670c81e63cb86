#include "h2o/graph/attention.h"

#include "h2o/graph/profile.h"

#include <algorithm>

// A block of queries leaves out the keys after its end, which causality hides: 4 blocks of a chunk's queries compute
// 5/8 of its [S x S] logits and hold 1/4 of them at a time.
static constexpr int64_t n_query_blocks = 4;

// [.., n_q, n_head] -> [.., n_head, n_q]
static ggml_tensor * by_query(ggml_context * ctx, ggml_tensor * t) {
    return ggml_cont(ctx, ggml_permute(ctx, t, 0, 2, 1, 3));
}

h2o_attention h2o_attention_fused(ggml_context * ctx, const h2o_attention_params & params) {
    const ggml_h2o_attn_result res = ggml_h2o_attn(ctx, params.q, params.k, params.v, &params);

    h2o_profile_ends_part(res.o->view_src, H2O_PART_ATTENTION);

    return { res.o, params.wants_lse ? by_query(ctx, ggml_add(ctx, res.m, ggml_log(ctx, res.l))) : nullptr, res.sums };
}

// The weights, set to 0 where a query does not count. Row numbers are exact in float32 up to 2^24.
//   weights:  [n_k, n_q, n_head]
//   neg_rows: F32 [n_k, 1, n_head_kv], minus the rows
//   ends:     F32 [1, n_q], limits + 1
static ggml_tensor * count_weights(ggml_context * ctx, ggml_tensor * weights, ggml_tensor * neg_rows,
        ggml_tensor * ends) {
    const int64_t n_k       = weights->ne[0];
    const int64_t n_q       = weights->ne[1];
    const int64_t n_head    = weights->ne[2];
    const int64_t n_head_kv = neg_rows->ne[2];

    ggml_tensor * counts = ggml_step(ctx, ggml_add(ctx, ggml_repeat_4d(ctx, neg_rows, n_k, n_q, n_head_kv, 1), ends));

    // the query heads of a KV head share its mask
    counts  = ggml_reshape_4d(ctx, counts,  n_k, n_q, 1,                n_head_kv);
    weights = ggml_reshape_4d(ctx, weights, n_k, n_q, n_head/n_head_kv, n_head_kv);

    return ggml_reshape_3d(ctx, ggml_mul(ctx, weights, counts), n_k, n_q, n_head);
}

static ggml_tensor * neg_rows_of(ggml_context * ctx, const h2o_attention_params & params) {
    ggml_tensor * t = ggml_neg(ctx, ggml_cast(ctx, params.rows, GGML_TYPE_F32));

    return ggml_reshape_3d(ctx, t, t->ne[0], 1, t->ne[1]);
}

static ggml_tensor * ends_of(ggml_context * ctx, const h2o_attention_params & params) {
    ggml_tensor * t = ggml_scale_bias(ctx, ggml_cast(ctx, params.limits, GGML_TYPE_F32), 1.0f, 1.0f);

    return ggml_reshape_2d(ctx, t, 1, t->ne[0]);
}

// Returns the scale that the logits still need.
static float cap_logits(ggml_context * ctx, ggml_tensor ** kq, const h2o_attention_params & params) {
    if (params.softcap == 0.0f) {
        return params.scale;
    }
    *kq = ggml_tanh(ctx, ggml_scale(ctx, *kq, params.scale/params.softcap));
    return params.softcap;
}

// What each key receives: the weights [n_k, n_q, n_head, n_c] summed over the queries and over the query heads of each KV
// head. [n_k, n_head_kv, n_c]
static ggml_tensor * column_sums(ggml_context * ctx, ggml_tensor * weights, int64_t n_head_kv) {
    const int64_t n_k = weights->ne[0];
    const int64_t n_q = weights->ne[1]*weights->ne[2]/n_head_kv; // of all query heads of a KV head
    const int64_t n_c = weights->ne[3];

    // computed, not a leaf, so that it takes no room while the rest of the graph is computed
    ggml_tensor * one  = ggml_fill(ctx, ggml_arange(ctx, 0.0f, 1.0f, 1.0f), 1.0f);
    ggml_tensor * sums = ggml_out_prod(ctx, ggml_reshape_4d(ctx, weights, n_k, n_q, n_head_kv, n_c),
            ggml_repeat_4d(ctx, one, 1, n_q, n_head_kv, n_c));

    return ggml_reshape_3d(ctx, sums, n_k, n_head_kv, n_c);
}

h2o_attention h2o_attention_composed(ggml_context * ctx, ggml_cgraph * gf, const h2o_attention_params & params) {
    ggml_tensor * q = params.q;

    const int64_t n_q       = q->ne[1];
    const int64_t n_head_kv = params.rows->ne[1];
    const int64_t n_k       = params.rows->ne[0];

    ggml_tensor * k = ggml_get_rows(ctx, params.k, params.rows);
    ggml_tensor * v = ggml_cont(ctx, ggml_transpose(ctx, ggml_get_rows(ctx, params.v, params.rows)));

    ggml_build_forward_expand(gf, k);
    ggml_build_forward_expand(gf, v);
    h2o_profile_ends_part(v, H2O_PART_GATHER);

    ggml_tensor * neg_rows = params.limits ? neg_rows_of(ctx, params) : nullptr;
    ggml_tensor * ends     = params.limits ? ends_of    (ctx, params) : nullptr;

    h2o_attention res = {};

    const int64_t step = (n_q + n_query_blocks - 1)/n_query_blocks;
    for (int64_t i = 0; i < n_q; i += step) {
        const int64_t n_q_i = std::min(step, n_q - i);
        const int64_t n_k_i = params.first ? n_k - n_q + i + n_q_i : n_k;

        // t's part for the block: queries are the second dimension
        const auto of_block = [&](ggml_tensor * t) {
            return ggml_view_3d(ctx, t, t->ne[0], n_q_i, t->ne[2], t->nb[1], t->nb[2], i*t->nb[1]);
        };
        ggml_tensor * k_i = ggml_view_3d(ctx, k, k->ne[0], n_k_i, n_head_kv, k->nb[1], k->nb[2], 0);
        ggml_tensor * v_i = ggml_view_3d(ctx, v, n_k_i, v->ne[1], n_head_kv, v->nb[1], v->nb[2], 0);
        ggml_tensor * q_i = of_block(q);

        ggml_tensor * kq = ggml_mul_mat(ctx, k_i, ggml_cont(ctx, q_i));
        ggml_prec_set_acc(kq, GGML_PREC_F32);
        const float scale = cap_logits(ctx, &kq, params);
        if (params.first) {
            kq = ggml_diag_mask_inf(ctx, kq, n_k_i - n_q_i);
        }

        // the largest logit first: the softmax may overwrite them
        ggml_tensor * largest = nullptr;
        if (params.wants_lse) {
            largest = ggml_scale(ctx, ggml_max_rows(ctx, kq), scale);
            ggml_build_forward_expand(gf, largest);
        }
        ggml_tensor * weights = ggml_soft_max_ext(ctx, kq, nullptr, scale, 0.0f);
        ggml_soft_max_add_sinks(weights, params.sinks);

        // Vulkan would round non-contiguous tensors to float16
        ggml_tensor * o = ggml_mul_mat(ctx, ggml_is_contiguous(v_i) ? v_i : ggml_cont(ctx, v_i), weights);
        ggml_prec_set_acc(o, GGML_PREC_F32);
        ggml_build_forward_expand(gf, o);

        const auto append = [&](ggml_tensor * a, ggml_tensor * b) { return a ? ggml_concat(ctx, a, b, 1) : b; };

        res.o = append(res.o, o);
        if (params.wants_lse) { // a weight is exp(logit - lse)
            res.lse = append(res.lse, ggml_sub(ctx, largest, ggml_log(ctx, ggml_max_rows(ctx, weights))));
            ggml_build_forward_expand(gf, res.lse);
        }
        if (!params.sums) {
            continue;
        }
        if (params.limits) {
            weights = count_weights(ctx, weights,
                    ggml_view_3d(ctx, neg_rows, n_k_i, 1, n_head_kv, neg_rows->nb[1], neg_rows->nb[2], 0),
                    of_block(ends));
        }
        const bool of_queries = params.sums == GGML_H2O_ATTN_QUERY_SUMS;

        weights = of_queries ? ggml_cont(ctx, ggml_permute(ctx, weights, 0, 3, 2, 1)) : weights;
        ggml_tensor * sums = ggml_pad(ctx, column_sums(ctx, weights, n_head_kv), n_k - n_k_i, 0, 0, 0);
        ggml_build_forward_expand(gf, sums);

        res.sums = !res.sums ? sums : of_queries ? ggml_concat(ctx, res.sums, sums, 2) : ggml_add(ctx, res.sums, sums);
    }

    res.o   = by_query(ctx, res.o);
    res.lse = res.lse ? by_query(ctx, res.lse) : nullptr;
    h2o_profile_ends_part(res.o, H2O_PART_ATTENTION);

    return res;
}

h2o_attention h2o_attention_fuse(ggml_context * ctx, const h2o_attention & a, const h2o_attention & b) {
    ggml_tensor * more  = ggml_sub(ctx, a.lse, b.lse);
    ggml_tensor * share = ggml_sigmoid(ctx, more);

    // share*o_a + (1 - share)*o_b with one product, since products that repeat a row's factor are slow on the CPU
    return {
        ggml_add(ctx, b.o, ggml_mul(ctx, ggml_sub(ctx, a.o, b.o), share)),
        ggml_add(ctx, a.lse, ggml_softplus(ctx, ggml_neg(ctx, more))),
        nullptr,
    };
}
