#include "h2o/graph/fetch.h"

#include "h2o/graph/profile.h"
#include "h2o/store/cold/far-rows.h"

#include "ggml/attention/attention.h"

struct h2o_step_graph::fetch_args {
    h2o_far_rows * far;
    size_t         layer;
    size_t         n;

    // of rows that are looked up
    const std::vector<int32_t> * memory;
    uint32_t                     n_head_kv;
    ggml_h2o_attn_source_layout  at;

    // of a range
    h2o_kv_store::part_t part;
    uint32_t             first;
};

static ggml_tensor * add_node(h2o_step_graph & g, h2o_step_graph::fetch_args args, ggml_type type, int64_t ne0, int64_t ne1, ggml_custom_op_t f,
        ggml_tensor * src = nullptr) {
    g.fetches.push_back(std::make_shared<h2o_step_graph::fetch_args>(args));

    ggml_tensor * res = ggml_custom_4d(g.ctx, type, ne0, ne1, 1, 1, &src, src ? 1 : 0, f, GGML_N_TASKS_MAX, g.fetches.back().get());
    ggml_build_forward_expand(g.gf, res);
    h2o_profile_ends_part(res, H2O_PART_GATHER);

    return res;
}

// of a source of n rows
static h2o_step_graph::fetch_args source_args(const h2o_step_graph & g, const h2o_kv_layer & layer, uint32_t n) {
    h2o_step_graph::fetch_args args = {};
    args.far   = g.env.store.far(g.shape.seq);
    args.layer = layer.index;
    args.n     = n;
    args.at    = ggml_h2o_attn_source_offsets(
            g.env.store.view(g.ctx, layer, h2o_kv_store::K, g.shape.seq), g.env.store.view(g.ctx, layer, h2o_kv_store::V, g.shape.seq), n);
    return args;
}

ggml_tensor * h2o_fetch_rows(h2o_step_graph & g, const h2o_kv_layer & layer) {
    auto args = source_args(g, layer, g.shape.n_far);
    args.memory    = &g.state.layers[layer.index].memory;
    args.n_head_kv = layer.k.n_head;

    return add_node(g, args, GGML_TYPE_I8, args.at.size, 1, [](ggml_tensor * dst, int ith, int nth, void * data) {
        const auto & a = *(const h2o_step_graph::fetch_args *) data;

        a.far->fetch(a.layer, *a.memory, a.n_head_kv, a.at, a.n, (uint8_t *) dst->data, ith, nth);
    });
}

ggml_tensor * h2o_fetch_chosen(h2o_step_graph & g, const h2o_kv_layer & layer, ggml_tensor * positions) {
    const auto args = source_args(g, layer, g.shape.n_indexed);

    return add_node(g, args, GGML_TYPE_I8, args.at.size, 1, [](ggml_tensor * dst, int ith, int nth, void * data) {
        const auto & a = *(const h2o_step_graph::fetch_args *) data;

        const ggml_tensor * chosen = dst->src[0];
        a.far->fetch_chosen(a.layer, (const int32_t *) chosen->data, ggml_nelements(chosen), a.at, a.n, (uint8_t *) dst->data, ith, nth);
    }, positions);
}

ggml_tensor * h2o_fetch_range(h2o_step_graph & g, const h2o_kv_layer & layer, h2o_kv_store::part_t part, uint32_t first, uint32_t n) {
    const auto & rows = part == h2o_kv_store::K ? layer.k : layer.v;

    h2o_step_graph::fetch_args args = {};
    args.far   = g.env.store.far(g.shape.seq);
    args.layer = layer.index;
    args.n     = n;
    args.part  = part;
    args.first = first;

    ggml_tensor * res = add_node(g, args, rows.t->type, (int64_t) rows.n_embd*rows.n_head, n, [](ggml_tensor * dst, int ith, int nth, void * data) {
        const auto & a = *(const h2o_step_graph::fetch_args *) data;

        a.far->fetch_range(a.layer, (h2o_cold_store::part_t) a.part, a.first, a.n, (uint8_t *) dst->data, ith, nth);
    });
    return ggml_view_3d(g.ctx, res, rows.n_embd, n, rows.n_head, res->nb[1], ggml_row_size(rows.t->type, rows.n_embd), 0);
}
