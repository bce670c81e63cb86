// The attention of one layer in a step: a function for each phase.

#include "h2o/graph/build.h"

#include "h2o/graph/attention.h"
#include "h2o/graph/fetch.h"
#include "h2o/graph/intra.h"
#include "h2o/graph/profile.h"
#include "h2o/store/key-index.h"
#include "h2o/store/kv-store.h"

#include "ggml/top-keys/top-keys.h"

#include <algorithm>

namespace {

// keys of a layer that queries attend to
struct keys {
    ggml_tensor * rows;  // I32 [n_k, n_head_kv]
    ggml_tensor * first; // I32 [n_k]: the first query that sees a key; NULL: all see all
    bool          is_text;   // rows 0, 1, ...
};

// An input where it can be viewed. The scheduler copies an input to a device once, but each view of it separately.
ggml_tensor * on_device(h2o_step_graph & g, ggml_tensor * input, const h2o_kv_layer & layer) {
    ggml_tensor *& res = g.copies[{ input, layer.device }];
    if (!res) {
        res = ggml_backend_dev_type(layer.device) == GGML_BACKEND_DEVICE_TYPE_CPU ? input : ggml_cont(g.ctx, input);
    }
    return res;
}

// the layer's first n numbers for each head
ggml_tensor * rows_of(h2o_step_graph & g, ggml_tensor * input, const h2o_kv_layer & layer, int64_t n) {
    ggml_tensor * all = on_device(g, input, layer);

    return ggml_view_2d(g.ctx, all, n, layer.k.n_head, all->nb[1], all->ne[2] > 1 ? layer.index*all->nb[2] : 0);
}

// memory keys, then chunk keys
keys memory_chunk_keys(h2o_step_graph & g, const h2o_kv_layer & layer) {
    return { rows_of(g, g.inputs.memory_chunk_rows, layer, g.inputs.memory_chunk_rows->ne[0]),
            g.inputs.memory_chunk_first, false };
}

// everything so far
keys text_keys(h2o_step_graph & g, const h2o_kv_layer & layer) {
    return { rows_of(g, g.inputs.text_rows, layer, g.shape.n_text), g.inputs.text_first, true };
}

ggml_h2o_attn_sums sums_of(const h2o_step_graph & g, const h2o_layer_attention & a) {
    if (a.layer.is_dense() || !a.owns_kv || !g.shape.is_scored) {
        return GGML_H2O_ATTN_NO_SUMS;
    }
    if (g.step.phase == h2o_step::DECODE) {
        return g.env.decodes_memory(a.layer) ? GGML_H2O_ATTN_QUERY_SUMS : GGML_H2O_ATTN_NO_SUMS;
    }
    return GGML_H2O_ATTN_COLUMN_SUMS;
}

// Extra keys of a layer with memory sets, found by the index of keys.
void add_extra_keys(h2o_step_graph & g, const h2o_kv_layer & layer, h2o_attention_params & params) {
    if (layer.is_dense() || g.shape.n_indexed == 0) {
        return;
    }
    const auto tiles = h2o_tile_grid_of(g.step, g.env.config);

    params.extra.tile   = (int) tiles.size;
    params.extra.offset = (int) tiles.offset;
    const uint32_t n_top = std::min(g.env.config.n_extra(g.shape.n_indexed), g.shape.n_indexed - g.shape.n_memory);

    // the positions in the memory set
    ggml_tensor * memory = rows_of(g, g.inputs.memory ? g.inputs.memory : g.inputs.memory_chunk_rows, layer,
            g.shape.n_memory);

    ggml_tensor * keys    = g.env.index->keys(g.ctx, layer, g.shape.seq, g.shape.n_indexed);
    ggml_tensor * queries = g.env.index->rotated_queries(g.ctx, layer.il, params.q);

    params.extra.rows = ggml_h2o_top_keys(g.ctx, queries, keys, memory, n_top, params.extra.tile, params.extra.offset);
    // read when the graph is computed: memory that no other node can have
    ggml_tensor * kept = params.extra.rows;
    if (!g.shape.keeps_choices && kept->ne[1] > 1) {
        kept = ggml_cont(g.ctx, ggml_view_3d(g.ctx, kept, n_top, 1, kept->ne[2], kept->nb[1], kept->nb[2],
                (kept->ne[1] - 1)*kept->nb[1]));
        ggml_build_forward_expand(g.gf, kept);
    }
    ggml_set_output(kept);
    g.choices.push_back({ (uint32_t) layer.index, kept, {} });

    if (g.env.store.cold(g.shape.seq)) {
        h2o_fetch_rows(g, layer, params.extra);
    }
}

// attention to keys in the cache, without sums
h2o_attention_params params_of(const h2o_step_graph & g, const h2o_layer_attention & a, ggml_tensor * q,
        const keys & keys) {
    h2o_attention_params params = {};
    params.k       = g.env.store.view(g.ctx, a.layer, H2O_K, g.shape.seq);
    params.v       = g.env.store.view(g.ctx, a.layer, H2O_V, g.shape.seq);
    params.q       = q;
    params.rows    = keys.rows;
    params.first   = keys.first;
    params.sinks   = a.sinks;
    params.scale   = a.scale;
    params.softcap = a.softcap;
    return params;
}

// q [n_embd_head_k, n_q, n_head], limits I32 [n_q] or NULL
h2o_attention attend(h2o_step_graph & g, const h2o_layer_attention & a, ggml_tensor * q, const keys & keys,
        ggml_tensor * limits) {
    const auto & layer = a.layer;

    h2o_attention_params params = params_of(g, a, q, keys);
    params.sums   = sums_of(g, a);
    params.limits = params.sums && g.state.is_scored ? limits : nullptr;
    params.wants_lse = g.step.phase == h2o_step::INTRA || g.step.phase == h2o_step::INTER;
    const bool is_fused = g.env.is_fused[layer.il];
    if (keys.is_text && is_fused) {
        params.rows = nullptr;
        params.n_k  = g.shape.n_text;
    }
    add_extra_keys(g, layer, params);

    return is_fused ? h2o_attention_fused(g.ctx, params) : h2o_attention_composed(g.ctx, g.gf, params);
}

// read when the graph is computed
void keep_sums(h2o_step_graph & g, const h2o_kv_layer & layer, ggml_tensor * sums, uint32_t first = 0) {
    if (!sums) {
        return;
    }
    ggml_tensor * kept = ggml_cont(g.ctx, sums); // what else is in the result need not be kept
    ggml_set_output(kept);
    ggml_build_forward_expand(g.gf, kept);
    h2o_profile_ends_part(kept, H2O_PART_SCORES);

    g.sums.push_back({ (uint32_t) layer.index, first, kept, {} });
}

// as the model takes it: the heads of a query are a row
ggml_tensor * rows_of_heads(h2o_step_graph & g, ggml_tensor * o) {
    return ggml_reshape_2d(g.ctx, o, o->ne[0]*o->ne[1], g.step.n_tokens);
}

// one softmax over keys; the step's own keys come last
ggml_tensor * build_causal(h2o_step_graph & g, const h2o_layer_attention & a, ggml_tensor * q, const keys & keys) {
    const h2o_attention res = attend(g, a, ggml_permute(g.ctx, q, 0, 2, 1, 3), keys, g.inputs.limits);

    ggml_build_forward_expand(g.gf, res.o);
    keep_sums(g, a.layer, res.sums);

    return rows_of_heads(g, res.o);
}

// what phase 1 keeps of the n_q queries from the offset on
h2o_attention kept_of(h2o_step_graph & g, const h2o_kv_layer & layer, int64_t n_q, int64_t offset) {
    const auto view = [&](ggml_tensor * t, int64_t n) {
        return ggml_view_3d(g.ctx, t, n, layer.n_head, n_q, n*t->nb[0], t->nb[1], offset*t->nb[1]);
    };
    const auto & cache = g.env.intra->get(layer.il);

    return { view(cache.o, layer.v.n_embd), view(cache.lse, 1), nullptr };
}

// Phase 1: every chunk attends to itself.
ggml_tensor * build_intra(h2o_step_graph & g, const h2o_layer_attention & a, ggml_tensor * q) {
    const auto parts = h2o_chunk_parts(g.step, g.env.config.chunk_size);

    ggml_tensor * text   = on_device(g, g.inputs.text_rows, a.layer);
    ggml_tensor * limits = g.inputs.limits ? on_device(g, g.inputs.limits, a.layer) : nullptr;

    for (size_t i = 0; i < parts.size(); ++i) {
        const auto & p = parts[i];

        ggml_tensor * q_p = ggml_view_3d(g.ctx, q, q->ne[0], p.n_q, q->ne[1], q->nb[2], q->nb[1], p.offset*q->nb[2]);

        ggml_tensor * rows = ggml_view_2d(g.ctx, text, p.n_k, a.layer.k.n_head, text->nb[1],
                (p.pos - parts[0].pos)*text->nb[0]);

        ggml_tensor * limits_p = limits ? ggml_view_1d(g.ctx, limits, p.n_q, p.offset*limits->nb[0]) : nullptr;

        const h2o_attention res = attend(g, a, q_p, { rows, g.inputs.part_first[i], false }, limits_p);

        const h2o_attention kept = kept_of(g, a.layer, p.n_q, p.offset);
        ggml_build_forward_expand(g.gf, ggml_cpy(g.ctx, res.lse, kept.lse));
        ggml_build_forward_expand(g.gf, ggml_cpy(g.ctx, res.o, kept.o));

        keep_sums(g, a.layer, res.sums, p.pos);
    }

    return rows_of_heads(g, kept_of(g, a.layer, g.step.n_tokens, 0).o);
}

// Phase 2: attention to the memory set, fused with phase 1.
ggml_tensor * build_inter(h2o_step_graph & g, h2o_layer_attention a, ggml_tensor * q) {
    const h2o_attention intra = kept_of(g, a.layer, g.step.n_tokens, g.step.offset);
    if (g.shape.n_memory == 0) {
        return rows_of_heads(g, intra.o);
    }

    keys memory = memory_chunk_keys(g, a.layer);
    memory.first = nullptr;
    a.sinks      = nullptr; // phase 1 has counted them

    const h2o_attention inter = attend(g, a, ggml_permute(g.ctx, q, 0, 2, 1, 3), memory, g.inputs.limits);

    ggml_tensor * cur = h2o_attention_fuse(g.ctx, intra, inter).o;
    ggml_build_forward_expand(g.gf, cur);
    h2o_profile_ends_part(cur, H2O_PART_ATTENTION);

    keep_sums(g, a.layer, inter.sums);

    return rows_of_heads(g, cur);
}

// A dense tail's attention to ranges of the cold store. It is not scored: evicted positions have no scores.
ggml_tensor * build_stored_tail(h2o_step_graph & g, const h2o_layer_attention & a, ggml_tensor * q) {
    const uint32_t start = g.env.config.chunk_start(g.step.pos);
    const uint32_t size  = h2o_range_size(g.step, g.env.config.chunk_size);

    h2o_attention_params params = params_of(g, a, ggml_permute(g.ctx, q, 0, 2, 1, 3), memory_chunk_keys(g, a.layer));

    params.wants_lse = true;
    h2o_attention res = h2o_attention_fused(g.ctx, params);

    params.first = nullptr;
    params.sinks = nullptr;
    for (uint32_t first = 0; first < start; first += size) {
        const uint32_t n = std::min(size, start - first);

        params.k    = h2o_fetch_range(g, a.layer, H2O_K, first, n);
        params.v    = h2o_fetch_range(g, a.layer, H2O_V, first, n);
        params.rows = nullptr;
        params.n_k  = n;

        res = h2o_attention_fuse(g.ctx, res, h2o_attention_fused(g.ctx, params));
        ggml_build_forward_expand(g.gf, res.o);
    }

    return rows_of_heads(g, res.o);
}

} // namespace

ggml_tensor * h2o_build_attention(h2o_step_graph & g, const h2o_layer_attention & a, ggml_tensor * q) {
    const auto & layer = a.layer;
    switch (g.step.phase) {
        case h2o_step::SINGLE_PASS:
            return build_causal(g, a, q, layer.is_dense() ? text_keys(g, layer) : memory_chunk_keys(g, layer));
        case h2o_step::INTRA:
            return build_intra(g, a, q);
        case h2o_step::INTER:
            return build_inter(g, a, q);
        case h2o_step::TAIL:
            return g.env.store.cold(g.shape.seq) && !layer.is_dense() ? build_stored_tail(g, a, q) :
                    build_causal(g, a, q, text_keys(g, layer));
        case h2o_step::DECODE:
            return build_causal(g, a, q, g.env.decodes_memory(layer) ?
                    memory_chunk_keys(g, layer) : text_keys(g, layer));
    }
    GGML_ABORT("no such phase");
}
