#include "h2o/graph/graph.h"

#include "h2o/graph/profile.h"
#include "h2o/graph/softmax.h"

#include "llama-model.h"

#include "ggml/top-keys/top-keys.h"

#include <algorithm>
#include <stdexcept>

ggml_tensor * h2o_graph::build_attn(const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il) {
    switch (step.phase) {
        case h2o_step::SINGLE_PASS: return build_single_pass(graph, q, kq_scale, il);
        case h2o_step::INTRA:       return build_intra      (graph, q, kq_scale, il);
        case h2o_step::INTER:       return build_inter      (graph, q, kq_scale, il);
        case h2o_step::TAIL:        return build_tail       (graph, q, kq_scale, il);
        case h2o_step::DECODE:      return build_decode     (graph, q, kq_scale, il);
    }
    GGML_ABORT("no such phase");
}

std::vector<h2o_graph::run> h2o_graph::runs() const {
    const uint32_t S   = stream->sequence.config.chunk_size;
    const uint32_t end = step.pos + step.n_tokens;

    std::vector<run> res;

    uint32_t p = step.pos;
    while (p < end) {
        const uint32_t chunk_start = p/S*S;

        if (p == chunk_start && end - p >= S) {
            const uint32_t n_chunks = (end - p)/S;
            res.push_back({ p, S, p - step.pos, S, n_chunks });
            p += n_chunks*S;
        } else {
            const uint32_t p_end = std::min(end, chunk_start + S);
            res.push_back({ chunk_start, p_end - chunk_start, p - step.pos, p_end - p, 1 });
            p = p_end;
        }
    }

    return res;
}

h2o_attention h2o_graph::build_attention(
        const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * rows, ggml_tensor * limits, bool causal, float kq_scale, int il) {
    const int64_t n_k = rows->ne[0]/q->ne[3];

    const auto * layer = stream->sequence.layer(il);
    const bool   tiled = layer && has_tiles();
    const int    sums  = !layer ? GGML_H2O_ATTN_NO_SUMS :
        step.phase != h2o_step::DECODE ? GGML_H2O_ATTN_COLUMN_SUMS :
        layer->pending                 ? GGML_H2O_ATTN_QUERY_SUMS  : GGML_H2O_ATTN_NO_SUMS;

    if (tiled) {
        add_tiles(graph);
    }
    ggml_tensor * far       = tiled ? fetch(graph, il) : nullptr;
    ggml_tensor * retrieved = layer ? retrieve(graph, q, il) : nullptr;

    h2o_attention_params params = {
        /*.k      =*/ stream->keys  (graph.ctx0, il),
        /*.v      =*/ stream->values(graph.ctx0, il),
        /*.q      =*/ q,
        /*.rows   =*/ rows,
        /*.first  =*/ causal ? get_first(graph, n_k, q->ne[1], /*is_text =*/ step.phase != h2o_step::DECODE || !decodes_memory(il)) : nullptr,
        /*.limits =*/ sums ? limits : nullptr,
        /*.scale  =*/ kq_scale,
        /*.sums   =*/ sums,
        /*.further =*/ {},
    };
    if (tiled) {
        params.further = { tile_rows, tile_queries, (int) tile_size(), (int) tile_offset(), far, (int) n_far };
    } else if (retrieved) {
        params.further = { retrieved, nullptr, 1, 0, nullptr, 0 };
    }

    if (has_fused_attention(il)) {
        return h2o_attention_fused(graph.ctx0, params);
    }
    if (has_flash_attention(il) && sums != GGML_H2O_ATTN_COLUMN_SUMS) {
        const int64_t first_row = layer ? stream->sequence.config.memory_size() - step.n_memory : 0;
        return h2o_attention_flash(graph.ctx0, params, first_row, get_mask(graph, n_k, q->ne[1], /*is_text =*/ !layer));
    }
    return h2o_attention_composed(graph.ctx0, graph.gf, params);
}

uint32_t h2o_graph::n_indexed(const h2o_step & step) const {
    const uint32_t n = stream->sequence.config.chunk_start(step.pos);

    return stream->key_index && step.n_memory > 0 && n > step.n_memory ? n : 0;
}

ggml_tensor * h2o_graph::retrieve(const llm_graph_context & graph, ggml_tensor * q, int il) const {
    const uint32_t n = n_indexed(step);
    if (n == 0) {
        return nullptr;
    }

    const uint32_t n_top = std::min(stream->sequence.config.lookup_budget, n - step.n_memory);

    return ggml_h2o_top_keys(graph.ctx0, q, stream->key_index->keys(graph.ctx0, il, stream->id, n), stream->rows(graph.ctx0, il, step.n_memory, 0), n_top);
}

bool h2o_graph::has_fused_attention(int il) const {
    return fused_attention && stream->has_fused_attention(il);
}

bool h2o_graph::has_flash_attention(int il) const {
    return flash_attention && stream->sequence.layout.is_compact && !has_fused_attention(il) && stream->has_flash_attention(il);
}

bool h2o_graph::decodes_memory(int il) const {
    return stream->sequence.config.decode == LLAMA_H2O_DECODE_MEMORY && stream->sequence.layer(il);
}

uint32_t h2o_graph::n_decode_rows(const h2o_step & step) const {
    const auto & config = stream->sequence.config;

    const uint32_t n_positions = stream->sequence.layout.n_positions();
    const uint32_t n           = step.n_memory + step.pos%config.chunk_size + step.n_tokens;
    const uint32_t n_max       = step.n_memory + std::min(config.chunk_size, n_positions - config.chunk_start(step.pos));

    return std::min<uint32_t>(GGML_PAD(n, DECODE_PADDING), n_max);
}

// score[row] += sum
void h2o_graph::add_scores(const llm_graph_context & graph, ggml_tensor * rows, ggml_tensor * sums, int il) const {
    if (!sums) {
        return;
    }

    ggml_context * ctx0 = graph.ctx0;

    ggml_tensor * t = stream->sequence.layer(il)->scores;

    ggml_tensor * scores = ggml_view_3d(ctx0, t, 1, t->ne[0], t->ne[1], t->nb[0], t->nb[1], 0);
    ggml_tensor * added  = ggml_add(ctx0, ggml_get_rows(ctx0, scores, rows), ggml_reshape_3d(ctx0, sums, 1, rows->ne[0], rows->ne[1]));

    ggml_tensor * stored = ggml_set_rows(ctx0, scores, added, rows);
    ggml_build_forward_expand(graph.gf, stored);
    h2o_profile_ends_part(stored, H2O_PART_SCORES);
}

// The rows of these tokens, for the memory set and the chunk so far. sums [n_k, n_head_kv, n_tokens]
void h2o_graph::store_pending(const llm_graph_context & graph, ggml_tensor * sums, int il) {
    if (!sums) {
        return;
    }

    ggml_context * ctx0 = graph.ctx0;

    const auto & config = stream->sequence.config;

    ggml_tensor * t = stream->sequence.layer(il)->pending;

    const size_t n_rows = config.MAX_PENDING + 1;

    ggml_tensor * pending = ggml_view_3d(ctx0, t, sums->ne[0], n_rows, sums->ne[1], t->nb[1], n_rows*t->nb[1],
            (config.memory_size() - step.n_memory)*t->nb[0]);

    ggml_tensor * stored = ggml_set_rows(ctx0, pending, ggml_permute(ctx0, sums, 0, 2, 1, 3), get_pending_rows(graph));
    ggml_build_forward_expand(graph.gf, stored);
    h2o_profile_ends_part(stored, H2O_PART_SCORES);
}

ggml_tensor * h2o_graph::build_scored(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * rows, float kq_scale, int il) {
    ggml_context * ctx0 = graph.ctx0;

    ggml_tensor * limits = stream->sequence.layer(il) ? get_limits(graph) : nullptr; // an input must be used: dense layers score nothing

    const h2o_attention res = build_attention(graph, ggml_permute(ctx0, q, 0, 2, 1, 3), rows, limits, /*causal =*/ true, kq_scale, il);

    ggml_build_forward_expand(graph.gf, res.o);
    add_scores(graph, rows, res.sums, il);

    return ggml_reshape_2d(ctx0, res.o, res.o->ne[0]*res.o->ne[1], step.n_tokens);
}

// one softmax over the memory set and the own chunk
ggml_tensor * h2o_graph::build_single_pass(const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il) {
    if (!stream->sequence.layer(il)) {
        return build_tail(graph, q, kq_scale, il); // a dense layer
    }

    ggml_tensor * rows = stream->rows(graph.ctx0, il, step.n_memory, step.pos%stream->sequence.config.chunk_size + step.n_tokens);

    return build_scored(graph, q, rows, kq_scale, il);
}

// over everything up to here, scored
ggml_tensor * h2o_graph::build_tail(const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il) {
    if (stream->far && stream->sequence.layer(il)) {
        return build_stored_tail(graph, q, kq_scale, il);
    }
    has_size_of_text = true;

    return build_scored(graph, q, get_all_rows(graph, il), kq_scale, il);
}

// over everything, which is not scored, or over the memory set and the own chunk
ggml_tensor * h2o_graph::build_decode(const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il) {
    ggml_context * ctx0 = graph.ctx0;

    ggml_tensor * rows;
    if (!decodes_memory(il)) {
        has_size_of_text = true;
        rows = get_all_rows(graph, il);
        if (!has_padding(il)) {
            has_exact_rows = true; // composed attention has no padding
            rows = ggml_view_2d(ctx0, rows, std::min<int64_t>(step.pos + step.n_tokens, n_kv), rows->ne[1], rows->nb[1], 0);
        }
    } else if (has_padding(il)) {
        has_memory_rows = true;
        rows = stream->rows(ctx0, il, step.n_memory, n_decode_rows(step) - step.n_memory);
    } else {
        has_exact_rows = true;
        rows = stream->rows(ctx0, il, step.n_memory, step.pos%stream->sequence.config.chunk_size + step.n_tokens);
    }

    ggml_tensor * limits = decodes_memory(il) && stream->sequence.layer(il)->pending ? get_limits(graph) : nullptr;

    const h2o_attention res = build_attention(graph, ggml_permute(ctx0, q, 0, 2, 1, 3), rows, limits, /*causal =*/ true, kq_scale, il);

    ggml_build_forward_expand(graph.gf, res.o);
    store_pending(graph, res.sums, il);

    return ggml_reshape_2d(ctx0, res.o, res.o->ne[0]*res.o->ne[1], step.n_tokens);
}

// phase 1: [S x S] causal attention of every chunk to itself, whole chunks as one batch
ggml_tensor * h2o_graph::build_intra(const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il) {
    ggml_context * ctx0 = graph.ctx0;
    ggml_cgraph  * gf   = graph.gf;

    const uint32_t S         = stream->sequence.config.chunk_size;
    const int64_t  n_head    = q->ne[1];
    const int64_t  n_head_kv = hparams.n_head_kv(il);

    const auto & cache = stream->intra->get(il);

    ggml_tensor * all    = get_all_rows(graph, il);
    ggml_tensor * limits = get_limits(graph);

    for (const auto & r : runs()) {
        ggml_tensor * q_r = ggml_view_4d(ctx0, q, q->ne[0], r.n_q, n_head, r.n_chunks,
                q->nb[2], q->nb[1], S*q->nb[2], r.offset_q*q->nb[2]);

        ggml_tensor * rows = ggml_view_2d(ctx0, all, r.n_k*r.n_chunks, n_head_kv, all->nb[1], (r.pos_k - first_position())*all->nb[0]);

        ggml_tensor * limits_r = limits ? ggml_view_2d(ctx0, limits, r.n_q, r.n_chunks, S*limits->nb[0], r.offset_q*limits->nb[0]) : nullptr;

        const h2o_attention res = build_attention(graph, q_r, rows, limits_r, /*causal =*/ true, kq_scale, il);

        const auto state_row = [&](ggml_tensor * t) {
            return ggml_view_4d(ctx0, t, 1, r.n_q, n_head, r.n_chunks, t->nb[0], t->nb[1], S*t->nb[0], r.offset_q*t->nb[0]);
        };

        ggml_build_forward_expand(gf, ggml_cpy(ctx0, res.m, state_row(cache.m)));
        ggml_build_forward_expand(gf, ggml_cpy(ctx0, res.l, state_row(cache.l)));
        ggml_build_forward_expand(gf, ggml_cpy(ctx0, res.o,
                ggml_view_2d(ctx0, cache.o, cache.o->ne[0], r.n_q*r.n_chunks, cache.o->nb[1], r.offset_q*cache.o->nb[1])));

        if (!res.sums) {
            continue;
        }

        ggml_tensor * t = stream->sequence.layer(il)->scores;
        ggml_tensor * scores = ggml_view_3d(ctx0, t, r.n_k, n_head_kv, r.n_chunks, t->nb[1], S*t->nb[0], r.pos_k*t->nb[0]);

        ggml_tensor * stored = ggml_cpy(ctx0, ggml_add(ctx0, res.sums, ggml_cast(ctx0, scores, GGML_TYPE_F32)), scores);
        ggml_build_forward_expand(gf, stored);
        h2o_profile_ends_part(stored, H2O_PART_SCORES);
    }

    return ggml_view_2d(ctx0, cache.o, cache.o->ne[0], step.n_tokens, cache.o->nb[1], 0);
}

// phase 2: attention to the memory set, fused with phase 1
ggml_tensor * h2o_graph::build_inter(const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il) {
    ggml_context * ctx0 = graph.ctx0;

    const int64_t n_q    = step.n_tokens;
    const int64_t n_head = q->ne[1];
    const int64_t d_v    = hparams.n_embd_head_v(il);

    const auto & cache = stream->intra->get(il);

    if (step.n_memory == 0) {
        return ggml_view_2d(ctx0, cache.o, d_v*n_head, n_q, cache.o->nb[1], step.offset*cache.o->nb[1]);
    }

    ggml_tensor * rows = stream->rows(ctx0, il, step.n_memory, 0);

    const h2o_attention res = build_attention(graph, ggml_permute(ctx0, q, 0, 2, 1, 3), rows, get_limits(graph), /*causal =*/ false, kq_scale, il);

    const h2o_softmax_state inter = { res.m, res.l, ggml_permute(ctx0, res.o, 0, 2, 1, 3) };

    const auto state_row = [&](ggml_tensor * t) {
        return ggml_view_3d(ctx0, t, 1, n_q, n_head, t->nb[0], t->nb[1], step.offset*t->nb[0]);
    };

    const h2o_softmax_state intra = {
        /*.m =*/ state_row(cache.m),
        /*.l =*/ state_row(cache.l),
        /*.o =*/ ggml_view_3d(ctx0, cache.o, d_v, n_q, n_head, cache.o->nb[1], d_v*cache.o->nb[0], step.offset*cache.o->nb[1]),
    };

    ggml_tensor * cur = ggml_permute(ctx0, h2o_softmax_state_fuse(ctx0, intra, inter).o, 0, 2, 1, 3);

    cur = ggml_cont_3d(ctx0, cur, d_v, n_head, n_q);
    ggml_build_forward_expand(graph.gf, cur);
    h2o_profile_ends_part(cur, H2O_PART_ATTENTION);

    add_scores(graph, rows, res.sums, il);

    return ggml_reshape_2d(ctx0, cur, d_v*n_head, n_q);
}
