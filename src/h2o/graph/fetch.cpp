#include "h2o/graph/fetch.h"

#include "h2o/graph/profile.h"
#include "h2o/store/cold/store.h"

#include <algorithm>
#include <exception>
#include <utility>

// A node whose data `fetch` writes; src: computed before, or NULL
static ggml_tensor * add_node(h2o_step_graph & g, ggml_type type, int64_t ne0, int64_t ne1, h2o_step_graph::fetch fetch,
        ggml_tensor * src = nullptr) {
    g.fetches.push_back(std::make_shared<h2o_step_graph::fetch>(
            [cold = g.env.store.cold(g.shape.seq), fetch = std::move(fetch)](ggml_tensor * dst, int ith, int nth) {
        try {
            fetch(dst, ith, nth);
        } catch (const std::exception & e) {
            cold->keep_failure(e.what());
        }
    }));

    const auto call = [](ggml_tensor * dst, int ith, int nth, void * data) {
        (*(const h2o_step_graph::fetch *) data)(dst, ith, nth);
    };
    ggml_tensor * res = ggml_custom_4d(g.ctx, type, ne0, ne1, 1, 1, &src, src ? 1 : 0, call, GGML_N_TASKS_MAX,
            g.fetches.back().get());
    ggml_build_forward_expand(g.gf, res);
    h2o_profile_ends_part(res, H2O_PART_GATHER);

    return res;
}

void h2o_fetch_rows(h2o_step_graph & g, const h2o_kv_layer & layer, ggml_h2o_attn_extra & extra) {
    const auto & store  = g.env.store;
    const auto   n_list = extra.rows->ne[0]*extra.rows->ne[1];
    extra.n_source      = std::min<int64_t>(g.shape.n_indexed, n_list);

    const auto source = ggml_h2o_attn_source_offsets(store.view(g.ctx, layer, H2O_K, g.shape.seq),
            store.view(g.ctx, layer, H2O_V, g.shape.seq), extra.rows, extra.n_source);

    extra.source = add_node(g, GGML_TYPE_I8, source.size, 1,
            [cold = store.cold(g.shape.seq), i_layer = layer.index, source, in_order = extra.n_source == n_list](
            ggml_tensor * dst, int ith, int nth) {
        const ggml_tensor * chosen = dst->src[0];
        const size_t        n_all  = ggml_nelements(chosen);

        const h2o_cold_lists lists = { (const int32_t *) chosen->data, (size_t) chosen->ne[2], (size_t) chosen->ne[1],
            (size_t) chosen->ne[0], in_order };

        auto * bytes = (uint8_t *) dst->data;
        for (size_t i = n_all*ith/nth; i < n_all*(ith + 1)/nth; ++i) {
            ((int32_t *) (bytes + source.rows))[i] = lists.row_of(i);
        }
        const uint64_t n_text = (uint64_t) cold->n_chunks()*cold->chunk_size;
        for (const auto part : { H2O_K, H2O_V }) {
            cold->read_lists(i_layer, part, lists, n_text*ith/nth, n_text*(ith + 1)/nth,
                    bytes + (part == H2O_K ? source.k : source.v));
        }
    }, extra.rows);
}

ggml_tensor * h2o_fetch_range(h2o_step_graph & g, const h2o_kv_layer & layer, h2o_kv_part part, uint32_t first,
        uint32_t n) {
    const auto & rows = part == H2O_K ? layer.k : layer.v;

    ggml_tensor * res = add_node(g, rows.t->type, (int64_t) rows.n_embd*rows.n_head, n,
            [cold = g.env.store.cold(g.shape.seq), i_layer = layer.index, part, first, n](
            ggml_tensor * dst, int ith, int nth) {
        const size_t begin = (size_t) n*ith/nth;
        const size_t end   = (size_t) n*(ith + 1)/nth;
        cold->read_range(i_layer, part, first + begin, end - begin, (uint8_t *) dst->data + begin*dst->nb[1]);
    });
    return ggml_view_3d(g.ctx, res, rows.n_embd, n, rows.n_head, res->nb[1], ggml_row_size(rows.t->type, rows.n_embd),
            0);
}
