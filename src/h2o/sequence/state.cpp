#include "h2o/sequence/state.h"

#include <algorithm>
#include <cmath>
#include <optional>

std::vector<float> h2o_sequence_state::scores(const h2o_layer & layer) const {
    const size_t n = layer.n_memory();

    std::vector<float> res((size_t) layer.n_head_kv*n_tokens, NAN);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        float * dst = res.data() + (size_t) h*n_tokens;

        for (uint32_t pos = layer.first; pos < n_tokens; ++pos) {
            dst[pos] = pos < layer.end() ? layer.score(h, pos) : 0.0f;
        }
        for (size_t i = 0; i < n; ++i) {
            if (const uint32_t pos = layer.memory[h*n + i]; pos < n_tokens) { // stand-alone: tokens may come later
                dst[pos] = layer.memory_score(h, i);
            }
        }
    }
    if (config->ranks_blocks()) {
        const float scale = (1.0f - (float) config->ema_alpha)/(layer.n_head/layer.n_head_kv*config->chunk_size);
        for (float & score : res) {
            score *= scale;
        }
    }
    return res;
}

static std::vector<int32_t> padded(const std::vector<int32_t> & memory, uint32_t n_head_kv, size_t M) {
    const size_t n = memory.size()/n_head_kv;

    std::vector<int32_t> res(n_head_kv*M, -1);
    for (uint32_t h = 0; h < n_head_kv; ++h) {
        std::copy_n(memory.begin() + h*n, n, res.begin() + h*M);
    }
    return res;
}

std::vector<int32_t> h2o_sequence_state::memory(const h2o_layer & layer) const {
    return padded(layer.memory, layer.n_head_kv, config->memory_size());
}

std::vector<int32_t> h2o_sequence_state::past_memory(const h2o_layer & layer, uint32_t chunk) const {
    const auto it = checkpoints.find((chunk + 1)*config->chunk_size);

    return it == checkpoints.end() ? std::vector<int32_t>() :
            padded(it->second.layers[layer.index].memory, layer.n_head_kv, config->memory_size());
}

std::optional<std::vector<int32_t>> h2o_sequence_state::extra_keys(const h2o_layer & layer, uint32_t head,
        uint32_t tile) const {
    const uint64_t first = config->tile_start(tile);
    if (first >= n_tokens) {
        return {};
    }
    const uint32_t start = config->chunk_start(first);
    if (start <= config->n_memory(start)) {
        return std::vector<int32_t>(); // they read everything
    }
    const auto it = layer.extra_keys.find(tile);
    if (it == layer.extra_keys.end()) {
        return {};
    }
    const auto & [all, i, n_tiles] = it->second;
    const size_t n     = all->size()/layer.n_head_kv/n_tiles;
    const auto   begin = all->begin() + (head*n_tiles + i)*n;

    return std::vector<int32_t>(begin, std::find(begin, begin + n, -1));
}

h2o_checkpoint h2o_sequence_state::record(uint32_t end, uint32_t first) const {
    h2o_checkpoint res = { end, end > n_tokens ? end : std::min(n_scored, end), first, is_scored, is_by_hand,
            exact_end < end, {}, nullptr, nullptr };

    for (const auto & layer : layers) {
        res.layers.push_back(record(layer, end, first));
    }
    return res;
}

h2o_checkpoint::layer h2o_sequence_state::record(const h2o_layer & layer, uint32_t end, uint32_t first) const {
    h2o_checkpoint::layer res = { layer.n_built, layer.memory, {}, {} };
    if (!is_scored) {
        return res;
    }
    res.memory_scores.reserve(layer.memory.size());
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (size_t i = 0; i < layer.n_memory(); ++i) {
            res.memory_scores.push_back(layer.memory_score(h, i));
        }
    }
    const auto score = [&](uint32_t pos) { // unscored tokens have 0
        return layer.scores.begin() + (size_t) (std::min(pos, layer.end()) - layer.first)*layer.n_head_kv;
    };
    res.scores.assign(score(first), score(end));
    res.scores.resize((size_t) (end - first)*layer.n_head_kv);
    return res;
}
