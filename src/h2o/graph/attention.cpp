#include "h2o/graph/attention.h"

#include "h2o/graph/profile.h"
#include "h2o/graph/softmax.h"

#include <algorithm>
#include <cmath>

// A block of queries leaves out the keys after its end, which causality hides: 4 blocks of a chunk's queries compute
// 5/8 of its [S x S] logits and hold 1/4 of them at a time.
static constexpr int64_t n_query_blocks = 4;

h2o_attention h2o_attention_fused(ggml_context * ctx, const h2o_attention_params & params) {
    const h2o_attention res = ggml_h2o_attn(ctx, params.q, params.k, params.v, &params);

    h2o_profile_ends_part(res.o->view_src, H2O_PART_ATTENTION);

    return res;
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

// of n_q queries: nothing but the sinks
static h2o_softmax_state sink_state(ggml_context * ctx, const h2o_attention_params & params, int64_t n_q) {
    const int64_t n_head = params.q->ne[2];

    return {
        ggml_repeat_4d(ctx, ggml_reshape_3d(ctx, params.sinks, 1, 1, n_head), 1, n_q, n_head, 1),
        h2o_constant(ctx, 1.0f, 1, n_q, n_head),
        h2o_constant(ctx, 0.0f, params.v->ne[0], n_q, n_head),
    };
}

// Each query's column sums [n_k, n_head_kv, n_q]: weights [n_k, n_q, n_head], share [1, n_q, n_head] or nullptr.
static ggml_tensor * query_sums(ggml_context * ctx, ggml_tensor * weights, int64_t n_head_kv, ggml_tensor * share) {
    const auto by_query = [&](ggml_tensor * t) { return ggml_cont(ctx, ggml_permute(ctx, t, 0, 3, 2, 1)); };

    return h2o_column_sums_build(ctx, by_query(weights), n_head_kv, share ? by_query(share) : nullptr);
}

h2o_attention h2o_attention_flash(ggml_context * ctx, const h2o_attention_params & params, int64_t first_row,
        ggml_tensor * mask) {
    const auto rows = [&](ggml_tensor * t) {
        return ggml_view_3d(ctx, t, t->ne[0], mask->ne[0], t->ne[2], t->nb[1], t->nb[2], first_row*t->nb[1]);
    };

    ggml_tensor * o = ggml_flash_attn_ext(ctx, params.q, rows(params.k), rows(params.v), mask, params.scale, 0.0f,
            params.softcap);
    ggml_flash_attn_ext_add_sinks(o, params.sinks);
    ggml_prec_set_acc(o, GGML_PREC_F32);

    h2o_profile_ends_part(o, H2O_PART_ATTENTION);

    if (params.sums != GGML_H2O_ATTN_QUERY_SUMS) {
        return { o, nullptr, nullptr, nullptr };
    }

    ggml_tensor * kq = ggml_mul_mat(ctx, rows(params.k), ggml_cont(ctx, params.q));
    ggml_prec_set_acc(kq, GGML_PREC_F32);
    const float scale = cap_logits(ctx, &kq, params);

    ggml_tensor * weights = ggml_soft_max_ext(ctx, kq, mask, scale, 0.0f);
    ggml_soft_max_add_sinks(weights, params.sinks);
    if (params.limits) {
        weights = count_weights(ctx, weights, neg_rows_of(ctx, params), ends_of(ctx, params));
    }
    return { o, query_sums(ctx, weights, params.rows->ne[1], nullptr), nullptr, nullptr };
}

// Attention of every tile's queries to its tile rows, the tiles as one batch: a state of all queries. The first and the
// last tile are padded with queries that nobody looks at.
static h2o_softmax_state attend_to_tile_rows(ggml_context * ctx, ggml_cgraph * gf,
        const h2o_attention_params & params) {
    const int64_t n_q       = params.q->ne[1];
    const int64_t n_head    = params.q->ne[2];
    const int64_t n_head_kv = params.rows->ne[1];
    const int64_t n_group   = n_head/n_head_kv;
    const int64_t n         = params.extra.rows->ne[0];
    const int64_t n_tiles   = params.extra.rows->ne[1];
    const int64_t T         = params.extra.tile;
    const int64_t offset    = params.extra.offset;

    // the same rows for every KV head, repeated as float32, which all backends can
    ggml_tensor * rows = ggml_cast(ctx, ggml_reshape_1d(ctx, params.extra.rows, n*n_tiles), GGML_TYPE_F32);
    rows = ggml_cast(ctx, ggml_repeat_4d(ctx, rows, n*n_tiles, n_head_kv, 1, 1), GGML_TYPE_I32);

    ggml_tensor * k = ggml_reshape_4d(ctx, ggml_get_rows(ctx, params.k, rows), params.k->ne[0], n, n_tiles, n_head_kv);
    ggml_tensor * v = ggml_reshape_4d(ctx, ggml_get_rows(ctx, params.v, rows), params.v->ne[0], n, n_tiles, n_head_kv);
    v = ggml_cont(ctx, ggml_transpose(ctx, v));

    ggml_build_forward_expand(gf, k);
    ggml_build_forward_expand(gf, v);
    h2o_profile_ends_part(v, H2O_PART_GATHER);

    // -inf where the row is among the head's own
    ggml_tensor * own = ggml_reshape_3d(ctx, h2o_constant(ctx, 0.0f, params.k->ne[1], n_head_kv), 1, params.k->ne[1],
            n_head_kv);
    own = ggml_set_rows(ctx, own, h2o_constant(ctx, -INFINITY, 1, params.rows->ne[0], n_head_kv), params.rows);
    own = ggml_reshape_4d(ctx, ggml_get_rows(ctx, own, rows), n, 1, n_tiles, n_head_kv);

    // -inf where the query does not see the row: the logarithm of 1 or 0
    const auto for_queries = [&](ggml_tensor * t) {
        return ggml_repeat_4d(ctx, ggml_reshape_3d(ctx, t, n, 1, n_tiles), n, T, n_tiles, 1);
    };
    ggml_tensor * first = ggml_neg(ctx, ggml_cast(ctx, params.extra.first, GGML_TYPE_F32));
    ggml_tensor * query = ggml_reshape_3d(ctx, ggml_arange(ctx, 0.5f - offset, n_tiles*T + 0.5f - offset, 1.0f), 1, T,
            n_tiles);
    ggml_tensor * seen  = ggml_step(ctx, ggml_add(ctx, for_queries(first), query));

    ggml_tensor * mask = ggml_add(ctx, ggml_repeat_4d(ctx, own, n, T, n_tiles, n_head_kv), ggml_log(ctx, seen));

    // The query heads of a KV head next to each other, before the tiles: they are one factor. Not all backends can
    // repeat a factor. Between [.., T, n_tiles, n_head] and [.., T*n_group, n_tiles, n_head_kv]:
    const auto swapped = [&](ggml_tensor * t, int64_t n1, int64_t n2) {
        t = ggml_reshape_4d(ctx, t, t->ne[0]*T, n1, n2, n_head_kv);
        return ggml_cont(ctx, ggml_permute(ctx, t, 0, 2, 1, 3));
    };

    ggml_tensor * q = ggml_pad_ext(ctx, params.q, 0, 0, offset, n_tiles*T - offset - n_q, 0, 0, 0, 0);
    q = ggml_reshape_4d(ctx, swapped(q, n_tiles, n_group), q->ne[0], T*n_group, n_tiles, n_head_kv);

    ggml_tensor * kq = ggml_mul_mat(ctx, k, q);
    ggml_prec_set_acc(kq, GGML_PREC_F32);
    const float scale = cap_logits(ctx, &kq, params);

    // the query heads of a KV head share its mask
    mask = ggml_reshape_4d(ctx, mask, n*T, 1,       n_tiles, n_head_kv);
    kq   = ggml_reshape_4d(ctx, kq,   n*T, n_group, n_tiles, n_head_kv);
    kq   = ggml_reshape_4d(ctx, ggml_add(ctx, kq, mask), n, T*n_group, n_tiles, n_head_kv);

    ggml_tensor * weights = nullptr;
    const h2o_softmax_state state = h2o_softmax_state_build(ctx, kq, scale, v, &weights);

    const auto of_queries = [&](ggml_tensor * t) {
        const int64_t ne0 = t->ne[0];

        t = ggml_reshape_3d(ctx, swapped(t, n_group, n_tiles), ne0, T*n_tiles, n_head);
        ggml_build_forward_expand(gf, t); // m first
        return ggml_view_3d(ctx, t, ne0, n_q, n_head, t->nb[1], t->nb[2], offset*t->nb[1]);
    };

    ggml_tensor * m = of_queries(state.m);
    ggml_tensor * l = of_queries(state.l);
    ggml_tensor * o = of_queries(state.o);

    return { m, l, o };
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

    h2o_softmax_state tiles = {};
    if (params.extra.rows) {
        tiles = attend_to_tile_rows(ctx, gf, params);
    }

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

        ggml_tensor * weights = nullptr;
        h2o_softmax_state state = h2o_softmax_state_build(ctx, kq, scale, v_i, &weights);

        // m first: the softmax may overwrite the logits
        ggml_build_forward_expand(gf, state.m);
        ggml_build_forward_expand(gf, state.l);
        ggml_build_forward_expand(gf, state.o);

        h2o_softmax_state beside = {};
        if (params.extra.rows) {
            beside = { of_block(tiles.m), of_block(tiles.l), of_block(tiles.o) };
        }
        if (params.sinks) {
            const auto sinks = sink_state(ctx, params, n_q_i);
            beside = beside.m ? h2o_softmax_state_fuse(ctx, beside, sinks) : sinks;
        }
        ggml_tensor * share = nullptr; // of a query's weight, what its own keys have
        if (beside.m) {
            state = h2o_softmax_state_fuse(ctx, state, beside, &share);
        }

        const auto append = [&](ggml_tensor * a, ggml_tensor * b) { return a ? ggml_concat(ctx, a, b, 1) : b; };

        res.m = append(res.m, state.m);
        res.l = append(res.l, state.l);
        res.o = append(res.o, state.o);

        if (!params.sums) {
            continue;
        }
        if (params.limits) {
            weights = count_weights(ctx, weights,
                    ggml_view_3d(ctx, neg_rows, n_k_i, 1, n_head_kv, neg_rows->nb[1], neg_rows->nb[2], 0),
                    of_block(ends));
        }
        const bool of_queries = params.sums == GGML_H2O_ATTN_QUERY_SUMS;

        ggml_tensor * sums = of_queries ? query_sums(ctx, weights, n_head_kv, share) :
                h2o_column_sums_build(ctx, weights, n_head_kv, share);
        sums = ggml_pad(ctx, sums, n_k - n_k_i, 0, 0, 0);
        ggml_build_forward_expand(gf, sums);

        res.sums = !res.sums ? sums : of_queries ? ggml_concat(ctx, res.sums, sums, 2) : ggml_add(ctx, res.sums, sums);
    }

    res.o = ggml_cont(ctx, ggml_permute(ctx, res.o, 0, 2, 1, 3));
    h2o_profile_ends_part(res.o, H2O_PART_ATTENTION);

    return res;
}
