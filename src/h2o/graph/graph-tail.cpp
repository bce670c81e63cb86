// A dense tail's attention to what is evicted, part by part from the cold store.

#include "h2o/graph/graph.h"

#include "h2o/graph/profile.h"
#include "h2o/graph/softmax.h"

#include "llama-model.h"

#include <algorithm>

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

// over everything up to here. It is not scored: most has no row whose score could change
ggml_tensor * h2o_graph::build_stored_tail(const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il) {
    ggml_context * ctx0 = graph.ctx0;

    const uint32_t chunk_start = stream->sequence.config.chunk_start(step.pos);

    h2o_attention_params params = {};
    params.q     = ggml_permute(ctx0, q, 0, 2, 1, 3);
    params.scale = kq_scale;

    // the open chunk
    params.k     = stream->keys  (ctx0, il);
    params.v     = stream->values(ctx0, il);
    params.rows  = stream->rows(ctx0, il, 0, step.pos - chunk_start + step.n_tokens);
    params.first = get_first(graph, params.rows->ne[0], step.n_tokens, /*is_text =*/ false);

    const auto attend = [&]() -> h2o_softmax_state {
        const h2o_attention res = h2o_attention_fused(ctx0, params);
        return { res.m, res.l, ggml_permute(ctx0, res.o, 0, 2, 1, 3) };
    };

    h2o_softmax_state res = attend();

    params.first = nullptr;
    for (uint32_t first = 0; first < chunk_start; first += part_size()) {
        const uint32_t n = std::min(part_size(), chunk_start - first);

        params.k    = fetch_range(graph, h2o_cold_store::K, first, n, il);
        params.v    = fetch_range(graph, h2o_cold_store::V, first, n, il);
        params.rows = get_part_rows(graph, n, il);

        res = h2o_softmax_state_fuse(ctx0, res, attend());
        ggml_build_forward_expand(graph.gf, res.o);
    }

    return ggml_cont_2d(ctx0, ggml_permute(ctx0, res.o, 0, 2, 1, 3), res.o->ne[0]*res.o->ne[2], step.n_tokens);
}
