// Records of a sequence: what to go back to.

#include "h2o/sequence/sequence.h"

#include "ggml-backend.h"

#include <algorithm>
#include <utility>

uint32_t h2o_sequence::first_row(const h2o_layer & layer) const {
    const auto end = layer.memory.begin() + config.memory_size();

    return std::find_if(layer.memory.begin(), end, [](int32_t pos) { return pos >= 0; }) - layer.memory.begin();
}

h2o_record::layer h2o_sequence::record_layer(const h2o_layer & layer, uint32_t end, uint32_t first, bool with_kv) const {
    const size_t M = config.memory_size();

    h2o_scores scores(layer);

    h2o_record::layer res;
    res.n_built = layer.n_built;
    res.memory  = layer.memory;
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (size_t i = 0; i < M; ++i) {
            const int32_t pos = layer.memory[h*M + i];
            res.memory_scores.push_back(pos >= 0 ? scores.at(h, layout.memory_row(i, pos)) : 0.0f);
        }
        for (uint32_t p = first; p < end; ++p) {
            res.scores.push_back(scores.at(h, layout.row_of(p)));
        }
    }
    res.pending = pending_sums(layer, std::min(n_generated, end));
    if (with_kv) {
        res.k = k_rows(layer.il).get_bytes(first_row(layer), end_row(end));
        res.v = v_rows(layer.il).get_bytes(first_row(layer), end_row(end));
    }
    return res;
}

h2o_record h2o_sequence::record_until(uint32_t end, uint32_t first, bool with_kv) const {
    h2o_record res = { end, std::min(n_scored, end), first, {} };
    for (const auto & layer : layers) {
        res.layers.push_back(record_layer(layer, end, first, with_kv));
    }
    return res;
}

void h2o_sequence::set_chunk_records(std::map<uint32_t, h2o_record> chunk_records) {
    records = std::move(chunk_records);
    forget_records();
}

void h2o_sequence::restore(const h2o_record & record) {
    const size_t M = config.memory_size();

    for (auto & layer : layers) {
        const auto & r = record.layers[layer.index];

        layer.memory  = r.memory;
        layer.n_built = r.n_built;
        write_rows(layer, next_chunk_start(layer));

        h2o_scores scores(layer);

        const uint32_t end = layout.is_compact ? next_chunk_start(layer) + config.chunk_size : std::max(n_end, record.n_tokens);
        set_scores_of(scores, layer, record.first, record.n_tokens, r.scores.data());
        set_scores_of(scores, layer, record.n_tokens, end, nullptr);

        for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
            for (size_t i = 0; i < M; ++i) {
                if (const int32_t pos = layer.memory[h*M + i]; pos >= 0) {
                    scores.at(h, layout.memory_row(i, pos)) = r.memory_scores[h*M + i];
                }
            }
        }
        scores.store();

        if (!r.k.empty()) {
            k_rows(layer.il).set_bytes(first_row(layer), r.k);
            v_rows(layer.il).set_bytes(first_row(layer), r.v);
        }
    }

    n_tok    = record.n_tokens;
    n_scored = record.n_scored;
    n_end    = n_tok;
    restore_pending(record);

    records.erase(records.lower_bound(n_memory_sets()), records.end());
    truncate_text();
    if (cold) {
        cold->truncate(n_memory_sets());
    }
}

void h2o_sequence::copy_from(const h2o_sequence & src) {
    if (src.tiles) {
        tiles = std::make_unique<h2o_tiles>(*src.tiles);
    }
    if (cold) {
        cold->share(*src.cold);
    }
    records = src.records;
    restore(src.record(layout.is_compact ? src.open_start() : 0));

    for (auto & layer : layers) {
        if (layer.pending && src.n_generated > src.n_folded) {
            ggml_backend_tensor_copy(src.layers[layer.index].pending, layer.pending);
        }
    }
    n_folded = src.n_folded;
}

uint32_t h2o_sequence::rewind_limit() const {
    return std::max(n_memory_sets()*config.chunk_size, n_folded);
}

// tokens from pos on have changed nothing but what they have a place of their own for
bool h2o_sequence::is_open(uint32_t pos) const {
    return pos >= rewind_limit() || (pos == n_scored && pos >= n_memory_sets()*config.chunk_size);
}

bool h2o_sequence::can_rewind(uint32_t pos) const {
    const uint32_t S = config.chunk_size;

    if (is_open(pos)) {
        return true;
    }
    // rows that have moved since are not in a record
    const bool has_rows = !layout.is_compact || cold || pos == n_memory_sets()*S;

    return pos > 0 && pos % S == 0 && records.count(pos/S - 1) > 0 && has_rows;
}

bool h2o_sequence::rewind(uint32_t pos) {
    if (pos >= n_tok) {
        return true;
    }
    if (!can_rewind(pos)) {
        return false;
    }

    if (is_open(pos)) {
        for (auto & layer : layers) {
            h2o_scores scores(layer);
            set_scores_of(scores, layer, pos, n_end, nullptr);
            scores.store();
        }
        n_tok       = pos;
        n_end       = pos;
        n_folded    = std::min(n_folded, pos);
        n_generated = std::min(n_generated, pos);
        truncate_text();
        return true;
    }

    h2o_record record = records.at(pos/config.chunk_size - 1);
    if (layout.is_compact && pos < n_memory_sets()*config.chunk_size) {
        read_moved(record);
    }
    restore(record);
    return true;
}
