#include "h2o/store/kv-store.h"

#include "h2o/config/refusal.h"
#include "h2o/store/buffers.h"
#include "h2o/store/cold/store.h"
#include "h2o/store/key-index.h"

#include <algorithm>
#include <cmath>

h2o_kv_store::h2o_kv_store(const h2o_config & config, uint32_t kv_size, uint32_t n_seq,
        std::vector<h2o_kv_layer> layers, const h2o_positions & positions, std::shared_ptr<h2o_cold_place> place)
    : layout(config, kv_size), positions(positions), config(config), all_layers(std::move(layers)), cold_stores(n_seq) {
    for (const auto & layer : all_layers) {
        for (int part = H2O_K; part <= (layer.v_is_in_k() ? H2O_K : H2O_V); ++part) {
            all_parts.push_back({ &layer, (h2o_kv_part) part });
            if (!layer.is_dense()) {
                memory_parts.push_back(all_parts.back());
            }
        }
    }
    if (!place) {
        return;
    }

    std::vector<std::array<size_t, 2>> row_sizes;
    std::vector<h2o_cold_codec::layer> types;
    for (const auto & [layer, part] : memory_parts) {
        if (part == H2O_K) {
            row_sizes.push_back({ layer->k.t->nb[1], layer->v.t->nb[1] });
            types.push_back({ layer->il, { layer->k.t->type, layer->v.t->type } });
        }
    }
    std::shared_ptr<h2o_cold_codec> codec;
    if (config.lossless.on) {
        codec = std::make_shared<h2o_cold_codec>(config.lossless.n_threads, place, std::move(types));
    }
    for (auto & cold : cold_stores) {
        cold = std::make_unique<h2o_cold_store>(place, codec, config.chunk_size, row_sizes);
    }
}

h2o_kv_store::~h2o_kv_store() = default;

const h2o_kv_layer * h2o_kv_store::layer(int32_t il) const {
    for (const auto & layer : all_layers) {
        if (layer.il == il) {
            return &layer;
        }
    }
    return nullptr;
}

h2o_kv_rows h2o_kv_store::rows(const h2o_kv_layer & layer, h2o_kv_part part, uint32_t seq) const {
    h2o_kv_rows res = part == H2O_K ? layer.k : layer.v;
    res.row0 = (size_t) seq*n_rows_of(layer);
    return res;
}

ggml_tensor * h2o_kv_store::view(ggml_context * ctx, const h2o_kv_layer & layer, h2o_kv_part part, uint32_t seq,
        uint32_t first, uint32_t n) const {
    const auto r = rows(layer, part, seq);

    return ggml_view_3d(ctx, r.t, r.n_embd, n > 0 ? n : n_rows_of(layer) - first, r.n_head,
            r.t->nb[1], ggml_row_size(r.t->type, r.n_embd), (r.row0 + first)*r.t->nb[1]);
}

h2o_key_rotation h2o_kv_store::rotation(const h2o_kv_layer & layer, const h2o_rope & rope, uint32_t seq, uint32_t from,
        uint32_t to, std::vector<int32_t> shifts, const h2o_key_index * index) const {
    h2o_key_rotation res = { rows(layer, H2O_K, seq), rope, from, to, std::move(shifts) };
    if (index && index->has(layer.il)) {
        res.index     = index->storage().at(layer.il);
        res.index_to  = seq*index->n_rows + to;
        res.index_rot = index->rotation_size(layer.il);
    }
    return res;
}

void h2o_kv_store::check_ropes(const h2o_key_index * index, const std::vector<ggml_backend_t> & backends) const {
    if (ropes.empty()) {
        throw h2o_refusal(h2o_reason::POSITIONS,
                "[h2o] keys can move to other positions only in a model with plain RoPE: the keys of this one have no "
                        "positions to change, or several for a token. Use positions text");
    }
    const uint32_t from = layout.is_compact ? layout.first_written_row(1) : 0;
    const uint32_t to   = layout.is_compact ? layout.first_row(1)         : 0;

    std::vector<h2o_key_rotation> rotations;
    for (const auto & [il, rope] : ropes) {
        rotations.push_back(rotation(*layer(il), rope, 0, from, to, std::vector<int32_t>(layer(il)->k.n_head, 1), index));
    }
    h2o_row_mover::check(backends, rotations);
}

void h2o_kv_store::move(uint32_t seq, const std::vector<h2o_piece> & pieces, const h2o_key_index * index,
        const std::vector<ggml_backend_t> & backends) {
    constexpr uint32_t N_ROTATED = 1024; // keys at a time: float32 copies take memory
    if (pieces.empty()) {
        return;
    }

    const auto move = [&](const h2o_kv_rows & rows) {
        h2o_row_copies copies;
        for (const auto & piece : pieces) {
            copies.add(rows, piece.from, piece.n, piece.from);
        }
        copies.save(); // a piece may come to where another one is
        for (size_t i = 0; i < pieces.size(); ++i) {
            h2o_copy_rows(copies.ranges()[i].copy, 0, rows.t, rows.row0 + pieces[i].to, pieces[i].n);
        }
    };
    for (const auto & [layer, part] : all_parts) {
        move(rows(*layer, part, seq));
    }
    for (const auto & layer : all_layers) {
        if (index && index->has(layer.il)) {
            move({ index->storage().at(layer.il), seq*index->n_rows, 0, 0, 0 });
        }
        const auto rope = ropes.find(layer.il);
        if (rope == ropes.end()) { // its keys know no positions
            continue;
        }
        std::vector<h2o_key_rotation> rotations;
        for (const auto & [from, n, to] : pieces) {
            for (uint32_t i = 0; i < n; i += N_ROTATED) {
                std::vector<int32_t> shifts(std::min(n - i, N_ROTATED)*layer.k.n_head, (int32_t) to - (int32_t) from);
                rotations.push_back(rotation(layer, rope->second, seq, to + i, to + i, std::move(shifts), index));
            }
        }
        mover.rotate(backends, rotations);
    }
}

void h2o_kv_store::apply(uint32_t seq, const h2o_selection & selection, const h2o_sequence_state & state,
        const std::vector<ggml_backend_t> & backends) {
    if (!layout.is_compact) {
        return;
    }

    if (auto * cold = this->cold(seq)) {
        const uint32_t row = layout.row_of(0);
        cold->append([&](size_t i, h2o_kv_part part) {
            return rows(*memory_parts[2*i + part].first, part, seq).get_bytes(row, row + config.chunk_size);
        });
    }

    const uint32_t start = state.n_memory_sets()*config.chunk_size;

    std::vector<h2o_row_moves> moves;
    for (const auto & [layer, part] : memory_parts) {
        const uint32_t before = written_row(part, selection.n_before, start - config.chunk_size);

        std::vector<int32_t> from;
        from.reserve(selection.from[layer->index].size());
        for (const uint32_t i : selection.from[layer->index]) {
            from.push_back(i < selection.n_before ? before + i : layout.row_of(0) + i - selection.n_before);
        }
        moves.push_back({ rows(*layer, part, seq), written_row(part, selection.n, start), std::move(from) });
    }
    mover.move(backends, moves);
    move_keys(seq, state, backends);
}

void h2o_kv_store::move_keys(uint32_t seq, const h2o_sequence_state & state,
        const std::vector<ggml_backend_t> & backends) {
    const uint32_t start = state.n_memory_sets()*config.chunk_size;
    if (!positions.is_moved(start)) {
        return;
    }
    for (auto * backend : backends) {
        ggml_backend_synchronize(backend); // rows may be on the move
    }

    std::vector<h2o_key_rotation> rotations;
    for (const auto & [layer, part] : memory_parts) {
        const auto &   memory = state.layers[layer->index].memory;
        const uint32_t n      = state.layers[layer->index].n_memory();
        if (part == H2O_V || n == 0) {
            continue;
        }
        const auto k    = rows(*layer, H2O_K, seq);
        const auto rope = ropes.find(layer->il);
        if (rope == ropes.end()) { // its keys know no positions
            h2o_copy_rows(k.t, k.row0 + layout.first_written_row(n), k.t, k.row0 + layout.first_row(n), n);
            continue;
        }

        std::vector<int32_t> shifts;
        for (uint32_t i = 0; i < n; ++i) {
            for (uint32_t h = 0; h < k.n_head; ++h) {
                shifts.push_back(positions.shift(start, memory[h*n + i]));
            }
        }
        rotations.push_back(rotation(*layer, rope->second, seq, layout.first_written_row(n), layout.first_row(n),
                std::move(shifts), nullptr));
    }
    mover.rotate(backends, rotations);
}

std::optional<h2o_row_copies> h2o_kv_store::moved_rows(uint32_t seq, const h2o_checkpoint & checkpoint) const {
    const uint32_t start = checkpoint.layers[0].n_built*config.chunk_size;
    if (checkpoint.rows) {
        auto res = kept_rows(seq, start, checkpoint.rows->end, /*with_moved =*/ true);
        res.borrow(*checkpoint.rows);
        return res;
    }
    if (!cold(seq) || cold(seq)->n_chunks() <= checkpoint.layers[0].n_built) {
        return {};
    }
    auto res = kept_rows(seq, start, checkpoint.n_tokens);
    res.allocate();

    auto range = res.ranges().begin();
    for (const auto & [layer, part] : memory_parts) {
        const auto & memory = checkpoint.layers[layer->index].memory;
        const size_t n_head = rows(*layer, part, seq).n_head;
        if (!memory.empty()) {
            cold(seq)->read_lists(layer->index, part, { memory.data(), n_head, 1, memory.size()/n_head, true }, 0, start,
                    (uint8_t *) range++->copy->data);
        }
        if (checkpoint.n_tokens > start) {
            cold(seq)->read_range(layer->index, part, start, checkpoint.n_tokens - start,
                    (uint8_t *) range++->copy->data);
        }
    }
    return res;
}

void h2o_kv_store::go_back(uint32_t seq, const h2o_sequence_state & state, const h2o_row_copies * rows,
        const std::vector<ggml_backend_t> & backends) {
    if (rows) {
        rows->restore();
        if (!backends.empty()) {
            move_keys(seq, state, backends);
        }
    }
    if (cold(seq)) {
        cold(seq)->truncate(state.n_memory_sets());
    }
}

h2o_row_copies h2o_kv_store::kept_rows(uint32_t seq, uint32_t start, uint32_t end, bool with_moved) const {
    const uint32_t n = config.n_memory(start);

    h2o_row_copies res;
    res.end = end;
    for (const auto & [layer, part] : memory_parts) {
        res.add(rows(*layer, part, seq), written_row(part, n, start), n, start - n);
        res.add(rows(*layer, part, seq), layout.row_of(0), end - start, start);
        if (with_moved && part == H2O_K && positions.is_moved(start)) {
            res.add(rows(*layer, part, seq), layout.first_row(n), n, start - n);
        }
    }
    return res;
}

void h2o_kv_store::release(uint32_t seq, uint32_t first) const {
    for (const auto & [layer, part] : all_parts) {
        if (!layer->is_dense() || first == 0) {
            rows(*layer, part, seq).release(first, n_rows_of(*layer));
        }
    }
}

void h2o_kv_store::copy(uint32_t from, uint32_t to, const h2o_sequence_state & state) {
    const uint32_t n_kept = layout.is_compact ? layout.n_rows() : state.n_tokens;

    for (const auto & [layer, part] : all_parts) {
        // V has no rows before
        const uint32_t first = part == H2O_V && !layer->is_dense() ? layout.n_written_rows() : 0;
        const uint32_t n     = layer->is_dense() ? state.n_tokens : n_kept;

        const auto src = rows(*layer, part, from);
        h2o_copy_rows(src.t, src.row0 + first, src.t, rows(*layer, part, to).row0 + first, n - first);
    }
    if (cold(to)) {
        cold(to)->share(*cold(from));
    }
}

void h2o_kv_store::read(uint32_t seq, const h2o_sequence_state & state, const h2o_kv_layer & layer, h2o_kv_part part,
        uint32_t n_positions, float * dst) const {
    const auto r = rows(layer, part, seq);

    // n rows; a head's part of one is of the position pos_of(head, row)
    const auto put = [&](const std::vector<uint8_t> & bytes, size_t n, const auto & pos_of) {
        std::vector<float> rows(n*r.n_head*r.n_embd);
        r.decode(bytes.data(), n, rows.data());
        for (size_t i = 0; i < n; ++i) {
            for (size_t h = 0; h < r.n_head; ++h) {
                if (const uint32_t pos = pos_of(h, i); pos < n_positions) {
                    std::copy_n(&rows[(i*r.n_head + h)*r.n_embd], r.n_embd, dst + (h*n_positions + pos)*r.n_embd);
                }
            }
        }
    };
    if (!layout.is_compact) {
        put(r.get_bytes(0, n_positions), n_positions, [](size_t /*h*/, size_t i) { return i; });
        return;
    }
    std::fill_n(dst, (size_t) r.n_head*n_positions*r.n_embd, NAN);

    const auto &   memory  = state.layers[layer.index].memory;
    const size_t   n       = memory.size()/r.n_head;
    const uint32_t start   = state.open_start();
    const uint32_t n_chunk = state.n_tokens - start;
    put(r.get_bytes(layout.first_row(n), layout.row_of(0) + n_chunk), n + n_chunk,
            [&](size_t h, size_t i) { return i < n ? memory[h*n + i] : start + i - n; });

    if (const uint32_t n_cold = std::min(n_positions, start); cold(seq)) {
        std::vector<uint8_t> bytes(n_cold*r.t->nb[1]);
        cold(seq)->read_range(layer.index, part, 0, n_cold, bytes.data());
        put(bytes, n_cold, [](size_t /*h*/, size_t i) { return i; });
    }
}

uint64_t h2o_kv_store::n_bytes() const {
    uint64_t res = 0;
    for (const auto & [layer, part] : all_parts) {
        const uint32_t n_unused = !layer->is_dense() && part == H2O_V ? layout.n_written_rows() : 0;
        res += (uint64_t) (n_rows_of(*layer) - n_unused)*rows(*layer, part, 0).t->nb[1];
    }
    return res;
}

uint64_t h2o_kv_store::row_bytes(bool dense) const {
    uint64_t res = 0;
    for (const auto & [layer, part] : all_parts) {
        res += layer->is_dense() == dense ? rows(*layer, part, 0).t->nb[1] : 0;
    }
    return res;
}
