#include "h2o-state.h"

#include "h2o-select.h"

#include <algorithm>

h2o_layer::h2o_layer(const h2o_config & config, uint32_t kv_size, int32_t il, uint32_t n_head, uint32_t n_head_kv)
    : il(il), n_head(n_head), n_head_kv(n_head_kv), scores(config.score_type, n_head_kv, kv_size), memory(n_head_kv*config.memory_size(), -1) {
}

h2o_state::h2o_state(const h2o_config & config, uint32_t kv_size, const std::vector<layer_dims> & dims) : config(config), kv_size(kv_size) {
    layers.reserve(dims.size());
    for (const auto & d : dims) {
        layers.emplace_back(config, kv_size, d.il, d.n_head, d.n_head_kv);
    }
}

void h2o_state::clear() {
    n_tok   = 0;
    in_call = false;

    for (auto & layer : layers) {
        layer.scores.clear();
        layer.history.clear();
        layer.n_built = 0;
        std::fill(layer.memory.begin(), layer.memory.end(), -1);
    }
}

uint32_t h2o_state::n_memory_sets() const {
    uint32_t res = 0;
    for (const auto & layer : layers) {
        res = std::max(res, layer.n_built);
    }
    return res;
}

uint32_t h2o_state::n_memory(uint32_t chunk_end) const {
    return std::min<uint64_t>(config.memory_size(), chunk_end);
}

h2o_layer * h2o_state::layer(int32_t il) {
    for (auto & layer : layers) {
        if (layer.il == il) {
            return &layer;
        }
    }
    return nullptr;
}

const h2o_layer * h2o_state::layer(int32_t il) const {
    return const_cast<h2o_state *>(this)->layer(il);
}

void h2o_state::add_chunk_scores(h2o_layer & layer, uint32_t start, uint32_t n, const float * colsum) {
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (uint32_t i = 0; i < n; ++i) {
            layer.scores.add(h, start + i, colsum[(size_t) h*n + i]);
        }
    }
}

void h2o_state::add_memory_scores(h2o_layer & layer, uint32_t n_cols, const float * colsum) {
    const size_t M = config.memory_size();

    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        const int32_t * memory = layer.memory.data() + h*M;
        for (uint32_t i = 0; i < n_cols && memory[i] >= 0; ++i) {
            layer.scores.add(h, memory[i], colsum[(size_t) h*n_cols + i]);
        }
    }
}

void h2o_state::build_memory_set(h2o_layer & layer, uint32_t chunk_end) {
    const size_t   M           = config.memory_size();
    const uint32_t chunk_start = (chunk_end - 1)/config.chunk_size*config.chunk_size;

    const uint32_t n_sink      = std::min(config.sink_tokens, chunk_end);
    const uint32_t local_start = std::max(n_sink, chunk_end - std::min(config.local_window, chunk_end));

    std::vector<int32_t> pos;
    std::vector<float>   score;

    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        int32_t * memory = layer.memory.data() + h*M;

        pos.clear();
        for (size_t i = 0; i < M && memory[i] >= 0; ++i) {
            const uint32_t p = memory[i];
            if (p >= n_sink && p < std::min(local_start, chunk_start)) {
                pos.push_back(p);
            }
        }
        for (uint32_t p = std::max(chunk_start, n_sink); p < local_start; ++p) {
            pos.push_back(p);
        }

        score.resize(pos.size());
        for (size_t i = 0; i < pos.size(); ++i) {
            score[i] = layer.scores.get(h, pos[i]);
        }

        size_t n = 0;
        for (uint32_t p = 0; p < n_sink; ++p) {
            memory[n++] = p;
        }
        n += h2o_select_heavy(pos.data(), score.data(), pos.size(), config.heavy_budget, memory + n);
        for (uint32_t p = local_start; p < chunk_end; ++p) {
            memory[n++] = p;
        }
        std::fill(memory + n, memory + M, -1);
    }

    layer.n_built++;

    if (record) {
        layer.history.push_back(layer.memory);
    }
}

bool h2o_state::begin_chunk(uint32_t pos) {
    if (pos == 0 || pos % config.chunk_size != 0) {
        return false;
    }

    bool built = false;
    for (auto & layer : layers) {
        if (layer.n_built < pos/config.chunk_size) {
            build_memory_set(layer, pos);
            built = true;
        }
    }
    return built;
}

uint32_t h2o_state::last_chunk_start() const {
    return n_tok == 0 ? 0 : (n_tok - 1)/config.chunk_size*config.chunk_size;
}

void h2o_state::begin_call(uint32_t n_tokens) {
    const size_t   M           = config.memory_size();
    const uint32_t chunk_start = last_chunk_start();

    in_call  = true;
    call_end = n_tok + n_tokens;

    snapshot.clear();
    for (const auto & layer : layers) {
        snapshot_layer s;
        s.memory  = layer.memory;
        s.n_built = layer.n_built;

        for (size_t i = 0; i < layer.memory.size(); ++i) {
            s.memory_scores.push_back(layer.memory[i] >= 0 ? layer.scores.get(i/M, layer.memory[i]) : 0.0f);
        }
        for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
            for (uint32_t p = chunk_start; p < n_tok; ++p) {
                s.chunk_scores.push_back(layer.scores.get(h, p));
            }
        }

        snapshot.push_back(std::move(s));
    }
}

void h2o_state::end_call() {
    in_call = false;
}

void h2o_state::rollback() {
    if (!in_call) {
        return;
    }
    in_call = false;

    const size_t   M           = config.memory_size();
    const uint32_t chunk_start = last_chunk_start();

    for (size_t il = 0; il < layers.size(); ++il) {
        auto & layer = layers[il];
        auto & s     = snapshot[il];

        // a call changes the scores of its own chunks and of the memory set at its begin. The last chunk is in none yet,
        // even if it is complete, and may enter one in this call
        size_t i_chunk = 0;
        for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
            for (uint32_t p = chunk_start; p < call_end; ++p) {
                layer.scores.set(h, p, p < n_tok ? s.chunk_scores[i_chunk++] : 0.0f);
            }
        }
        for (size_t i = 0; i < s.memory.size(); ++i) {
            if (s.memory[i] >= 0) {
                layer.scores.set(i/M, s.memory[i], s.memory_scores[i]);
            }
        }

        layer.memory  = std::move(s.memory);
        layer.n_built = s.n_built;
        layer.history.resize(std::min<size_t>(layer.history.size(), layer.n_built));
    }
}

size_t h2o_state::n_bytes_scores() const {
    size_t res = 0;
    for (const auto & layer : layers) {
        res += layer.scores.n_bytes();
    }
    return res;
}

size_t h2o_state::n_bytes_memory() const {
    size_t res = 0;
    for (const auto & layer : layers) {
        res += layer.memory.size()*sizeof(layer.memory[0]);
    }
    return res;
}
