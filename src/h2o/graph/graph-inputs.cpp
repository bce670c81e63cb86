// The inputs of a graph: made when they are first asked for, set before each computation.

#include "h2o/graph/graph.h"

#include "h2o/graph/profile.h"

#include "llama-model.h"

#include <algorithm>
#include <numeric>

h2o_graph::h2o_graph(h2o_stream * stream, const h2o_step & step, uint32_t n_kv, bool fused_attention, bool flash_attention)
    : stream(stream), step(step), n_kv(n_kv), fused_attention(fused_attention), flash_attention(flash_attention), hparams(stream->model.hparams) {
}

void h2o_graph::set_input() {
    if (all_rows && all_rows->buffer) { // flash attention does not use it
        std::vector<int32_t> data(all_rows->ne[0], 0); // padding is not seen
        for (uint32_t pos = first_position(); pos < step.pos + step.n_tokens; ++pos) {
            data[pos - first_position()] = pos; // a cache of all positions
        }
        for (int64_t h = 0; h < all_rows->ne[1]; ++h) {
            ggml_backend_tensor_set(all_rows, data.data(), h*all_rows->nb[1], all_rows->nb[1]);
        }
    }

    for (const auto & [size, t] : first) {
        const auto & [n_k, n_q, is_text] = size;
        if (!t->buffer) {
            continue; // attention is composed, its masks need no input
        }

        const int64_t n_padding = step.phase == h2o_step::DECODE ? n_k - n_past(is_text) - n_q : 0;

        std::vector<int32_t> data(n_k, 0);
        std::iota(data.end() - n_padding - n_q, data.end() - n_padding, 0);
        std::fill(data.end() - n_padding, data.end(), n_q);
        ggml_backend_tensor_set(t, data.data(), 0, ggml_nbytes(t));
    }

    for (const auto & [size, t] : masks) {
        const auto & [n_k, n_q, is_text] = size;

        std::vector<ggml_fp16_t> data(n_k*n_q, ggml_fp32_to_fp16(-INFINITY));
        for (int64_t i = 0; i < n_q; ++i) {
            std::fill_n(data.begin() + i*n_k, n_past(is_text) + i + 1, ggml_fp32_to_fp16(0.0f));
        }
        ggml_backend_tensor_set(t, data.data(), 0, ggml_nbytes(t));
    }

    if (tile_rows) {
        set_tiles();
    }

    if (part_rows) {
        std::vector<int32_t> data(part_rows->ne[0]);
        std::iota(data.begin(), data.end(), 0);
        for (int64_t h = 0; h < part_rows->ne[1]; ++h) {
            ggml_backend_tensor_set(part_rows, data.data(), h*part_rows->nb[1], part_rows->nb[1]);
        }
    }

    if (limits) {
        const auto & config = stream->sequence.config;

        std::vector<int32_t> data(step.n_tokens);
        for (uint32_t i = 0; i < step.n_tokens; ++i) {
            data[i] = stream->sequence.layout.row_limit(config.scorer->limit(step.pos + i, config.local_window), config.chunk_start(step.pos));
        }
        ggml_backend_tensor_set(limits, data.data(), 0, ggml_nbytes(limits));
    }

    if (pending_rows) {
        std::vector<int32_t> data(step.n_tokens);
        for (uint32_t i = 0; i < step.n_tokens; ++i) {
            data[i] = (step.pos + i)%h2o_config::MAX_PENDING;
        }
        ggml_backend_tensor_set(pending_rows, data.data(), 0, ggml_nbytes(pending_rows));
    }

    stream->sequence.stats.n_reused += used;
    used = true;
}

// phase 1 looks at whole chunks, dense layers and tails at the whole sequence
uint32_t h2o_graph::first_position() const {
    return step.phase == h2o_step::INTRA ? stream->sequence.config.chunk_start(step.pos) : 0;
}

ggml_tensor * h2o_graph::get_all_rows(const llm_graph_context & graph, int il) {
    if (!all_rows) {
        uint32_t n_head_kv_max = 0;
        for (uint32_t il = 0; il < hparams.n_layer_all; ++il) {
            n_head_kv_max = std::max(n_head_kv_max, hparams.n_head_kv(il));
        }
        const int64_t n = step.phase == h2o_step::DECODE ? n_kv : step.pos + step.n_tokens - first_position();

        all_rows = ggml_new_tensor_2d(graph.ctx0, GGML_TYPE_I32, n, n_head_kv_max);
        ggml_set_input(all_rows);
        ggml_set_name(all_rows, "h2o_all_rows");
    }
    return ggml_view_2d(graph.ctx0, all_rows, all_rows->ne[0], hparams.n_head_kv(il), all_rows->nb[1], 0);
}

ggml_tensor * h2o_graph::get_first(const llm_graph_context & graph, int64_t n_k, int64_t n_q, bool is_text) {
    ggml_tensor * & t = first[{ n_k, n_q, is_text }];
    if (!t) {
        t = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, n_k);
        ggml_set_input(t);
        ggml_set_name(t, "h2o_first");
    }
    return t;
}

ggml_tensor * h2o_graph::get_mask(const llm_graph_context & graph, int64_t n_k, int64_t n_q, bool is_text) {
    ggml_tensor * & t = masks[{ n_k, n_q, is_text }];
    if (!t) {
        t = ggml_new_tensor_2d(graph.ctx0, GGML_TYPE_F16, n_k, n_q);
        ggml_set_input(t);
        ggml_set_name(t, "h2o_mask");
    }
    return t;
}

void h2o_graph::add_tiles(const llm_graph_context & graph) {
    if (tile_rows) {
        return;
    }

    const auto & tiles = *stream->sequence.tiles;

    const int64_t n_tiles = (tile_offset() + step.n_tokens + tile_size() - 1)/tile_size();

    const int64_t n_rows = tiles.n_seen_max(tile_size(), stream->sequence.layout.n_positions());

    tile_rows    = ggml_new_tensor_2d(graph.ctx0, GGML_TYPE_I32, n_rows, n_tiles);
    tile_queries = ggml_new_tensor_3d(graph.ctx0, GGML_TYPE_I32, n_rows, n_tiles, 2);
    ggml_set_input(tile_rows);
    ggml_set_input(tile_queries);
    ggml_set_name(tile_rows,    "h2o_tile_rows");
    ggml_set_name(tile_queries, "h2o_tile_queries");
}

void h2o_graph::set_tiles() const {
    const auto & sequence = stream->sequence;
    const auto & tiles    = *sequence.tiles;

    if (stream->far) {
        stream->far->set(far_positions());
    }

    std::vector<int32_t> rows (ggml_nelements(tile_rows),  stream->far ? 0 : sequence.layout.row_of(0)); // padding is read, and not seen
    std::vector<int32_t> first(ggml_nelements(tile_rows), step.n_tokens);
    std::vector<int32_t> last (ggml_nelements(tile_rows), step.n_tokens);

    const uint32_t end = step.pos + step.n_tokens;

    for (int64_t t = 0; t < tile_rows->ne[1]; ++t) {
        const uint32_t start = step.pos - tile_offset() + t*tile_size();
        const auto     view  = tiles.seen(std::max(start, step.pos), std::min(start + tile_size(), end));

        size_t i = t*tile_rows->ne[0];
        for (const auto * row = view.begin; row < view.end; ++row, ++i) {
            rows [i] = stream->far ? stream->far->row_of(row->pos) : sequence.layout.row_of(row->pos);
            first[i] = std::max<int32_t>(0, row->query - step.pos);
            last [i] = std::min<int32_t>(step.n_tokens, tiles.last(row) - step.pos);
        }
    }

    ggml_backend_tensor_set(tile_rows,    rows .data(), 0,                   ggml_nbytes(tile_rows));
    ggml_backend_tensor_set(tile_queries, first.data(), 0,                   tile_queries->nb[2]);
    ggml_backend_tensor_set(tile_queries, last .data(), tile_queries->nb[2], tile_queries->nb[2]);
}

std::vector<int32_t> h2o_graph::far_positions() const {
    const auto view = stream->sequence.tiles->seen(step.pos, step.pos + step.n_tokens);

    std::vector<int32_t> res;
    for (const auto * row = view.begin; row < view.end; ++row) {
        res.push_back(row->pos);
    }
    std::sort(res.begin(), res.end());
    res.erase(std::unique(res.begin(), res.end()), res.end());

    return res;
}

// Few steps of a size need many rows: a graph has room for four chunks, or half as many more as often as a step needs them. So graphs
// are used again, and the memory that they take moves a few times in a text of any length.
uint32_t h2o_graph::n_far_max() const {
    const uint32_t n_max = stream->sequence.tiles->n_seen_max(step.n_tokens, stream->sequence.layout.n_positions());

    uint32_t n = 4*stream->sequence.config.chunk_size;
    if (n >= n_max) {
        return n_max; // need not be counted
    }
    for (const uint32_t n_here = far_positions().size(); n < n_here && n < n_max; ) {
        n += n/2;
    }
    return std::min(n, n_max);
}

ggml_tensor * h2o_graph::fetch(const llm_graph_context & graph, int il) {
    const auto * layer = stream->sequence.layer(il);
    if (!stream->far || !layer) {
        return nullptr;
    }
    if (n_far == 0) {
        n_far = std::max(n_far_max(), 1u);
    }

    const auto at = ggml_h2o_attn_source_offsets(stream->keys(graph.ctx0, il), stream->values(graph.ctx0, il), n_far);

    fetches.push_back(std::make_unique<fetch_args>(fetch_args { stream->far.get(), layer, n_far, at }));

    ggml_tensor * res = ggml_custom_4d(graph.ctx0, GGML_TYPE_I8, at.size, 1, 1, 1, nullptr, 0, [](ggml_tensor * dst, int ith, int nth, void * data) {
        const auto & args = *(const fetch_args *) data;

        args.far->fetch(args.layer->index, args.layer->memory, args.layer->n_head_kv, args.at, args.n_far, (uint8_t *) dst->data, ith, nth);
    }, GGML_N_TASKS_MAX, fetches.back().get());

    ggml_build_forward_expand(graph.gf, res);
    h2o_profile_ends_part(res, H2O_PART_GATHER);

    return res;
}

// nullptr if every query counts
ggml_tensor * h2o_graph::get_limits(const llm_graph_context & graph) {
    if (!limits && stream->sequence.config.scorer->limits_queries()) {
        limits = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, step.n_tokens);
        ggml_set_input(limits);
        ggml_set_name(limits, "h2o_limits");
    }
    return limits;
}

ggml_tensor * h2o_graph::get_pending_rows(const llm_graph_context & graph) {
    if (!pending_rows) {
        pending_rows = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, step.n_tokens);
        ggml_set_input(pending_rows);
        ggml_set_name(pending_rows, "h2o_pending_rows");
    }
    return pending_rows;
}

bool h2o_graph::can_reuse(const h2o_stream * stream_new, const h2o_step & step_new, uint32_t n_kv_new) {
    // the views are of this sequence's rows
    if (stream_new != stream || step_new.phase != step.phase || n_indexed(step_new) != n_indexed(step)) {
        return false;
    }

    bool res;
    if (step.phase == h2o_step::DECODE) {
        res = step_new.n_tokens == step.n_tokens && step_new.n_memory == step.n_memory && !has_exact_rows;
        if (has_memory_rows) {
            res &= n_decode_rows(step_new) == n_decode_rows(step);
        }
        if (has_size_of_text) {
            res &= n_kv_new == n_kv;
        }
    } else if (step.phase == h2o_step::SINGLE_PASS && !has_size_of_text) {
        // the keys are a view that depends on no position, so one chunk's graph serves the next chunk
        const uint32_t S = stream->sequence.config.chunk_size;

        res = step_new.n_tokens == step.n_tokens && step_new.n_memory == step.n_memory && step_new.pos%S == step.pos%S;
    } else {
        res = step_new == step; // views of two_phase hold positions and offsets
    }

    step = step_new;
    n_kv = n_kv_new;

    return res && (n_far == 0 || n_far_max() <= n_far);
}
