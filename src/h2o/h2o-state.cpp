#include "h2o-state.h"

#include "h2o-scores.h"
#include "h2o-select.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string>

h2o_state::h2o_state(const h2o_config & config, uint32_t kv_size, const std::vector<layer_dims> & dims)
    : config(config), kv_size(kv_size), buffers(2*dims.size()) {
    for (const auto & d : dims) {
        const std::string suffix = "_l" + std::to_string(d.il);

        h2o_layer layer;
        layer.il        = d.il;
        layer.n_head    = d.n_head;
        layer.n_head_kv = d.n_head_kv;
        layer.scores    = buffers.add(d.device, "h2o_scores" + suffix, config.score_type, kv_size, d.n_head_kv);
        layer.keys      = buffers.add(d.device, "h2o_keys"   + suffix, GGML_TYPE_I32, config.memory_size() + config.chunk_size, d.n_head_kv);

        layers.push_back(layer);
    }
    buffers.allocate();
    clear();
}

void h2o_state::clear() {
    n_tok   = 0;
    in_call = false;

    const size_t M = config.memory_size();
    const size_t S = config.chunk_size;

    for (auto & layer : layers) {
        ggml_backend_tensor_memset(layer.scores, 0, 0, ggml_nbytes(layer.scores));

        h2o_host_data data(layer.keys);
        for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
            int32_t * keys = data.as<int32_t>() + h*(M + S);
            std::fill(keys, keys + M, -1);
            std::iota(keys + M, keys + M + S, 0);
        }
        data.store();

        layer.history.clear();
        layer.n_built = 0;
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

std::vector<int32_t> h2o_state::memory(const h2o_layer & layer) const {
    const size_t M = config.memory_size();
    const size_t S = config.chunk_size;

    h2o_host_data data(layer.keys);

    std::vector<int32_t> res(layer.n_head_kv*M, -1);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        const int32_t * keys = data.as<int32_t>() + h*(M + S);
        std::copy_if(keys, keys + M, res.begin() + h*M, [](int32_t pos) { return pos >= 0; });
    }
    return res;
}

void h2o_state::add_chunk_scores(h2o_layer & layer, uint32_t start, uint32_t n, const float * colsum) {
    h2o_scores scores(layer.scores);

    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (uint32_t i = 0; i < n; ++i) {
            scores.add(h, start + i, colsum[(size_t) h*n + i]);
        }
    }
    scores.store();
}

void h2o_state::add_memory_scores(h2o_layer & layer, const float * colsum) {
    const auto pos = memory(layer);

    h2o_scores scores(layer.scores);

    for (size_t i = 0; i < pos.size(); ++i) {
        if (pos[i] >= 0) {
            scores.add(i/config.memory_size(), pos[i], colsum[i]);
        }
    }
    scores.store();
}

void h2o_state::score_keys(h2o_layer & layer, uint32_t chunk_start, uint32_t chunk_end) {
    auto & k = key_rows;
    read_keys(layer.il, chunk_start, chunk_end, k);

    const uint32_t n = chunk_end - chunk_start;

    std::vector<float> score((size_t) layer.n_head_kv*n);
    config.scorer->score_keys(k.data(), n, layer.n_head_kv, k.size()/n/layer.n_head_kv, score.data());

    h2o_scores scores(layer.scores);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (uint32_t i = 0; i < n; ++i) {
            scores.set(h, chunk_start + i, score[h*n + i]);
        }
    }
    scores.store();
}

std::vector<int32_t> h2o_state::choose(uint32_t head, uint32_t chunk_end, h2o_scores & scores, const int32_t * memory) const {
    const uint32_t chunk_start = chunk_start_of(chunk_end);
    const uint32_t n_sink      = std::min(config.sink_tokens, chunk_end);
    const uint32_t local_start = std::max(n_sink, chunk_end - std::min(config.local_window, chunk_end));

    std::vector<int32_t> pos;
    std::copy_if(memory, memory + config.memory_size(), std::back_inserter(pos), [&](int32_t p) {
        return p >= (int32_t) n_sink && p < (int32_t) std::min(local_start, chunk_start);
    });
    for (uint32_t p = std::max(chunk_start, n_sink); p < local_start; ++p) {
        pos.push_back(p);
    }

    std::vector<float> rank(pos.size());
    for (size_t i = 0; i < pos.size(); ++i) {
        const uint32_t p = pos[i];

        const bool is_chunk_sink = p >= config.chunk_size && p % config.chunk_size < config.n_chunk_sink();

        rank[i] = is_chunk_sink ? -INFINITY : config.scorer->rank(scores.get(head, p), p, chunk_end, config);
    }
    h2o_pool_ranks(pos.data(), pos.size(), config.pooling, rank.data());

    const uint32_t n_heavy = std::min<size_t>(pos.size(), config.heavy_budget);

    std::vector<int32_t> res(n_sink + n_heavy + chunk_end - local_start);
    std::iota(res.begin(), res.begin() + n_sink, 0);
    h2o_select_heavy(pos.data(), rank.data(), pos.size(), config.heavy_budget, res.data() + n_sink);
    std::iota(res.begin() + n_sink + n_heavy, res.end(), local_start);

    return res;
}

void h2o_state::write_keys(int32_t * keys, const std::vector<int32_t> & memory, uint32_t chunk_start) const {
    const size_t M = config.memory_size();

    std::fill(keys, keys + M - memory.size(), -1);
    std::copy(memory.begin(), memory.end(), keys + M - memory.size());
    std::iota(keys + M, keys + M + config.chunk_size, chunk_start);
}

void h2o_state::build_memory_set(h2o_layer & layer, uint32_t chunk_end) {
    const uint32_t chunk_start = chunk_start_of(chunk_end);

    if (!config.scorer->uses_attention()) {
        score_keys(layer, chunk_start, chunk_end);
    }

    h2o_scores    scores(layer.scores);
    h2o_host_data data  (layer.keys);

    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        int32_t * keys = data.as<int32_t>() + h*layer.keys->ne[0];

        write_keys(keys, choose(h, chunk_end, scores, keys), chunk_start + config.chunk_size);
    }
    data.store();

    layer.n_built++;

    if (record) {
        layer.history.push_back(memory(layer));
    }
}

void h2o_state::set_memory(h2o_layer & layer, const int32_t * memory) {
    const size_t M = config.memory_size();

    begin_chunk(n_tok);

    h2o_host_data data(layer.keys);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        const int32_t * row = memory + h*M;
        write_keys(data.as<int32_t>() + h*layer.keys->ne[0], std::vector<int32_t>(row, row + n_memory(n_tok)), n_tok);
    }
    data.store();

    if (record) {
        layer.history.back().assign(memory, memory + layer.n_head_kv*M);
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

uint32_t h2o_state::chunk_start_of(uint32_t chunk_end) const {
    return chunk_end == 0 ? 0 : (chunk_end - 1)/config.chunk_size*config.chunk_size;
}

void h2o_state::begin_call(uint32_t n_tokens, bool all_scores) {
    in_call        = true;
    call_end       = n_tok + n_tokens;
    snapshot_start = all_scores ? 0 : chunk_start_of(n_tok);

    snapshot.clear();
    for (const auto & layer : layers) {
        h2o_host_data keys  (layer.keys);
        h2o_scores    scores(layer.scores);

        snapshot_layer s;
        s.keys.assign(keys.as<int32_t>(), keys.as<int32_t>() + ggml_nelements(layer.keys));
        s.n_built = layer.n_built;

        const auto pos = memory(layer);
        for (size_t i = 0; i < pos.size(); ++i) {
            s.memory_scores.push_back(pos[i] >= 0 ? scores.get(i/config.memory_size(), pos[i]) : 0.0f);
        }
        for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
            for (uint32_t p = snapshot_start; p < n_tok; ++p) {
                s.chunk_scores.push_back(scores.get(h, p));
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

    for (size_t il = 0; il < layers.size(); ++il) {
        auto & layer = layers[il];
        auto & s     = snapshot[il];

        ggml_backend_tensor_set(layer.keys, s.keys.data(), 0, ggml_nbytes(layer.keys));
        layer.n_built = s.n_built;
        layer.history.resize(std::min<size_t>(layer.history.size(), layer.n_built));

        h2o_scores scores(layer.scores);

        // a call changes the scores of its own chunks and of the memory set at its begin, a dense tail those of all
        // positions. The last chunk is in no memory set yet, even if it is complete, and may enter one in this call
        size_t i_chunk = 0;
        for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
            for (uint32_t p = snapshot_start; p < call_end; ++p) {
                scores.set(h, p, p < n_tok ? s.chunk_scores[i_chunk++] : 0.0f);
            }
        }
        const auto pos = memory(layer);
        for (size_t i = 0; i < pos.size(); ++i) {
            if (pos[i] >= 0) {
                scores.set(i/config.memory_size(), pos[i], s.memory_scores[i]);
            }
        }
        scores.store();
    }
}

size_t h2o_state::n_bytes_scores() const {
    size_t res = 0;
    for (const auto & layer : layers) {
        res += ggml_nbytes(layer.scores);
    }
    return res;
}

size_t h2o_state::n_bytes_memory() const {
    size_t res = 0;
    for (const auto & layer : layers) {
        res += ggml_nbytes(layer.keys);
    }
    return res;
}
