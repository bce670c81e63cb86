// Which rows of the cache hold a sequence, and moving them.

#include "h2o/sequence/sequence.h"

#include "ggml-backend.h"

#include <utility>

void h2o_sequence::write_rows(const h2o_layer & layer, uint32_t chunk_start) const {
    const size_t M = config.memory_size();

    h2o_host_data data(layer.rows);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        int32_t * rows = data.as<int32_t>() + h*layer.rows->ne[0];

        for (size_t i = 0; i < M; ++i) {
            const int32_t pos = layer.memory[h*M + i];
            rows[i] = pos >= 0 ? layout.memory_row(i, pos) : -1;
        }
        for (uint32_t i = 0; i < config.chunk_size; ++i) {
            rows[M + i] = layout.row_of(chunk_start + i); // rows beyond the cache are there in no graph
        }
    }
    data.store();
}

// A row moves to one that is not after it, and rows ascend: so none is overwritten that is still to be moved.
void h2o_sequence::move_rows(h2o_layer & layer, const std::vector<int32_t> & memory, uint32_t chunk_start) const {
    const size_t M = config.memory_size();

    std::vector<int32_t> from(memory.size(), -1);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        size_t old = h*M;
        for (size_t i = h*M; i < (h + 1)*M; ++i) {
            if (memory[i] >= 0) {
                while (old < (h + 1)*M && layer.memory[old] < memory[i]) {
                    old++;
                }
                from[i] = old < (h + 1)*M && layer.memory[old] == memory[i] ? old - h*M : layout.row_of(memory[i]);
            }
        }
    }

    h2o_scores scores(layer);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (size_t i = 0; i < M; ++i) {
            if (from[h*M + i] >= 0) {
                scores.at(h, i) = scores.at(h, from[h*M + i]);
            }
        }
    }
    set_scores_of(scores, layer, chunk_start, chunk_start + config.chunk_size, nullptr);
    scores.store();

    if (mover.is_for(k_rows(layer.il))) {
        layer.from = std::move(from);
    } else {
        k_rows(layer.il).move(from);
        v_rows(layer.il).move(from);
    }
}

void h2o_sequence::move_on_devices(const std::vector<h2o_layer *> & layers) {
    std::vector<h2o_row_moves> moves;
    for (auto * layer : layers) {
        if (!layer->from.empty()) {
            moves.push_back({ k_rows(layer->il), v_rows(layer->il), std::exchange(layer->from, {}) });
        }
    }
    mover.move(backends, moves);
}

void h2o_sequence::release_rows(uint32_t first) const {
    for (const auto & layer : layers) {
        k_rows(layer.il).release(first, layout.n_rows());
        v_rows(layer.il).release(first, layout.n_rows());
    }
}

void h2o_sequence::set_memory_set(h2o_layer & layer, std::vector<int32_t> memory, uint32_t chunk_start) {
    if (layout.is_compact) {
        move_rows(layer, memory, chunk_start);
    }
    layer.memory = std::move(memory);
    write_rows(layer, chunk_start);
}
