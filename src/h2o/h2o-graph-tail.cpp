// A dense tail's attention to what is evicted, part by part from the cold store.

#include "h2o-graph.h"

#include "h2o-profile.h"

#include "llama-model.h"

#include <algorithm>
#include <cmath>

uint32_t h2o_graph::part_size() const {
    const uint32_t S = stream->sequence.config.chunk_size;
    const uint32_t n = step.pos/S;

    return (n + MAX_TAIL_PARTS - 1)/MAX_TAIL_PARTS*S;
}

ggml_tensor * h2o_graph::fetch_range(const llm_graph_context & graph, h2o_cold_store::part_t part, uint32_t first, uint32_t n, int il) {
    const auto & layer = *stream->sequence.layer(il);

    ggml_tensor * like = part == h2o_cold_store::K ? stream->keys(graph.ctx0, il) : stream->values(graph.ctx0, il);

    range_fetches.push_back(std::make_unique<fetch_range_args>(fetch_range_args { stream->far.get(), layer.index, part, first, n }));

    ggml_tensor * rows = ggml_custom_4d(graph.ctx0, like->type, like->ne[0]*layer.n_head_kv, n, 1, 1, nullptr, 0,
            [](ggml_tensor * dst, int ith, int nth, void * data) {
        const auto & args = *(const fetch_range_args *) data;

        args.far->fetch_range(args.layer, args.part, args.first, args.n, (uint8_t *) dst->data, ith, nth);
    }, GGML_N_TASKS_MAX, range_fetches.back().get());

    ggml_build_forward_expand(graph.gf, rows);
    h2o_profile_ends_part(rows, H2O_PART_GATHER);

    return ggml_view_3d(graph.ctx0, rows, like->ne[0], n, layer.n_head_kv, rows->nb[1], ggml_row_size(like->type, like->ne[0]), 0);
}

ggml_tensor * h2o_graph::get_part_rows(const llm_graph_context & graph, uint32_t n, int il) {
    if (!part_rows) {
        uint32_t n_head_kv_max = 0;
        for (const auto & layer : stream->sequence.layers) {
            n_head_kv_max = std::max(n_head_kv_max, layer.n_head_kv);
        }
        part_rows = ggml_new_tensor_2d(graph.ctx0, GGML_TYPE_I32, part_size(), n_head_kv_max);
        ggml_set_input(part_rows);
        ggml_set_name(part_rows, "h2o_part_rows");
    }
    return ggml_view_2d(graph.ctx0, part_rows, n, hparams.n_head_kv(il), part_rows->nb[1], 0);
}

// The states of two blocks of keys, as ggml_h2o_attn gives them: sources o, m, l of a, then of b. dst holds o, m, l one after another.
//   m = max(m_a, m_b), w_x = l_x*exp(m_x - m), l = w_a + w_b, o = (w_a*o_a + w_b*o_b)/l
static void fuse_states(ggml_tensor * dst, int ith, int nth, void *) {
    const auto source = [&](int i) { return (const float *) dst->src[i]->data; };

    const float * a[] = { source(0), source(1), source(2) };
    const float * b[] = { source(3), source(4), source(5) };

    const int64_t d      = dst->src[0]->ne[0];
    const int64_t n_head = dst->src[0]->ne[1];
    const int64_t n_q    = dst->src[0]->ne[2];

    float * o = (float *) dst->data;
    float * m = o + d*n_head*n_q;
    float * l = m + n_head*n_q;

    for (int64_t i = ith; i < n_head*n_q; i += nth) {
        const int64_t state = i%n_head*n_q + i/n_head; // outputs are by query, then by head; m and l the other way round

        const float m_a = a[1][state], l_a = a[2][state];
        const float m_b = b[1][state], l_b = b[2][state];

        const float max = m_a > m_b || std::isnan(m_a) ? m_a : m_b;
        const float w_a = l_a == 0.0f ? 0.0f : l_a*expf(m_a - max);
        const float w_b = l_b == 0.0f ? 0.0f : l_b*expf(m_b - max);
        const float sum = w_a + w_b;

        m[state] = max;
        l[state] = sum;
        for (int64_t j = i*d; j < (i + 1)*d; ++j) {
            o[j] = sum == 0.0f ? 0.0f : (w_a*a[0][j] + w_b*b[0][j])/sum;
        }
    }
}

static h2o_attention fuse(ggml_context * ctx, const h2o_attention & a, const h2o_attention & b) {
    const int64_t n_o     = ggml_nelements(a.o);
    const int64_t n_state = ggml_nelements(a.m);
    const size_t  size    = sizeof(float);

    ggml_tensor * sources[] = { a.o, a.m, a.l, b.o, b.m, b.l };

    ggml_tensor * res = ggml_custom_4d(ctx, GGML_TYPE_F32, n_o + 2*n_state, 1, 1, 1, sources, 6, fuse_states, GGML_N_TASKS_MAX, nullptr);

    const auto state = [&](int64_t offset) {
        return ggml_view_4d(ctx, res, 1, a.m->ne[1], a.m->ne[2], 1, a.m->nb[1], a.m->nb[2], a.m->nb[3], offset*size);
    };
    return {
        /*.o    =*/ ggml_view_4d(ctx, res, a.o->ne[0], a.o->ne[1], a.o->ne[2], 1, a.o->nb[1], a.o->nb[2], a.o->nb[3], 0),
        /*.m    =*/ state(n_o),
        /*.l    =*/ state(n_o + n_state),
        /*.sums =*/ nullptr,
    };
}

// over everything up to here. It is not scored: most has no row whose score could change
ggml_tensor * h2o_graph::build_stored_tail(const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il) {
    ggml_context * ctx0 = graph.ctx0;

    const uint32_t chunk_start = stream->sequence.config.chunk_start(step.pos);

    h2o_attention_params params = {};
    params.q         = ggml_permute(ctx0, q, 0, 2, 1, 3);
    params.scale     = kq_scale;
    params.tile_size = 1;

    // the open chunk
    params.k     = stream->keys  (ctx0, il);
    params.v     = stream->values(ctx0, il);
    params.rows  = stream->rows(ctx0, il, 0, step.pos - chunk_start + step.n_tokens);
    params.first = get_first(graph, params.rows->ne[0], step.n_tokens, /*is_text =*/ false);

    h2o_attention res = h2o_attention_fused(ctx0, params);

    params.first = nullptr;
    for (uint32_t first = 0; first < chunk_start; first += part_size()) {
        const uint32_t n = std::min(part_size(), chunk_start - first);

        params.k    = fetch_range(graph, h2o_cold_store::K, first, n, il);
        params.v    = fetch_range(graph, h2o_cold_store::V, first, n, il);
        params.rows = get_part_rows(graph, n, il);

        res = fuse(ctx0, res, h2o_attention_fused(ctx0, params));
        ggml_build_forward_expand(graph.gf, res.o);
    }

    return ggml_reshape_2d(ctx0, ggml_cont(ctx0, res.o), res.o->ne[0]*res.o->ne[1], step.n_tokens);
}
