#include "h2o/sequence/sequence.h"

#include "h2o/select/select.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <iterator>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

h2o_sequence::h2o_sequence(const h2o_config & config, std::vector<h2o_layer> layers)
    : config(config), wants_scores(config.ranks()) {
    st.layers = std::move(layers);
    clear();
}

void h2o_sequence::clear() {
    h2o_sequence_state empty;
    empty.config    = &config;
    empty.is_scored = wants_scores;
    for (const auto & layer : st.layers) {
        empty.layers.emplace_back(layer.index, layer.il, layer.n_head, layer.n_head_kv);
    }
    st = std::move(empty);
}

void h2o_sequence::add_tokens(uint32_t n_tokens, bool generated) {
    st.n_tokens += n_tokens;
    if (!generated || st.scores_generated()) {
        st.n_scored = st.n_tokens;
    }
    set_generated_start(generated ? std::max(st.generated_start, st.n_memory_sets()*config.chunk_size) : st.n_tokens);
    forget_checkpoints();
    take_over_unseen();
}

std::optional<h2o_selection> h2o_sequence::begin_step(const h2o_step & step) {
    // phase 1 shows chunks to themselves only
    auto res = step.phase == h2o_step::INTRA ? std::nullopt : close_chunk(step.pos);

    if (step.phase == h2o_step::DECODE && st.scores_generated()) {
        begin_generated(step.pos, step.pos + step.n_tokens);
    }
    return res;
}

void h2o_sequence::add_scores(uint32_t i_layer, const h2o_columns & columns, const float * sums, size_t stride) {
    auto & layer = st.layers[i_layer];

    layer.grow(columns.first + columns.n);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        const float * sum = sums + h*stride;
        for (uint32_t i = 0; i < columns.n_memory; ++i) {
            layer.memory_score(h, i) += *sum++;
        }
        for (uint32_t i = 0; i < columns.n; ++i) {
            layer.score(h, columns.first + i) += *sum++;
        }
    }
}

void h2o_sequence::add_generated(uint32_t i_layer, const h2o_columns & columns, const float * sums, size_t stride) {
    const uint32_t pos = columns.first + columns.n - 1; // of the token
    if (pos > st.n_tokens) { // a later one of a draft
        st.checkpoints.at(pos).layers[i_layer] = st.record(st.layers[i_layer], pos, columns.first);
    }
    add_scores(i_layer, columns, sums, stride);
}

void h2o_sequence::add_attention(uint32_t i_layer, uint32_t end, const float * sums, size_t stride) {
    auto & layer = st.layers[i_layer];

    layer.attention.resize((size_t) end*layer.n_head_kv);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (uint32_t pos = 0; pos < end; ++pos) {
            layer.attention[(size_t) pos*layer.n_head_kv + h] += sums[h*stride + pos];
        }
    }
}

void h2o_sequence::forget_attention() {
    for (auto & layer : st.layers) {
        layer.attention.clear();
    }
}

void h2o_sequence::set_extra_keys(uint32_t i_layer, uint32_t q0, uint32_t q1, const h2o_tile_choice & keys) {
    auto & extra = st.layers[i_layer].extra_keys;
    if (!keep_extra_keys) {
        extra.clear();
    }
    for (uint32_t tile = config.tile_of(q0); tile <= config.tile_of(q1 - 1); ++tile) {
        extra[tile] = keys;
    }
}

void h2o_sequence::begin_generated(uint32_t pos, uint32_t end) {
    if (pos == st.generated_start) {
        mark(nullptr);
    }
    for (uint32_t p = pos; p < end; ++p) {
        if (p % config.chunk_size != 0) { // else it is a boundary
            st.checkpoints.emplace(p, st.record(p, config.chunk_start(p)));
        }
    }
    auto it = st.checkpoints.begin();
    while (it != st.checkpoints.end() && it->first + h2o_config::MAX_GENERATED < end) {
        it = past().is_generated(it->first) ? st.checkpoints.erase(it) : std::next(it);
    }
}

void h2o_sequence::set_generated_start(uint32_t pos) {
    for (auto it = st.checkpoints.begin(); it != st.checkpoints.lower_bound(pos);) {
        it = past().is_generated(it->first) ? st.checkpoints.erase(it) : std::next(it);
    }
    st.generated_start = pos;
}

std::optional<h2o_selection> h2o_sequence::close_chunk(uint32_t pos) {
    if (pos == 0 || pos % config.chunk_size != 0 || st.n_memory_sets() >= pos/config.chunk_size) {
        return {};
    }
    h2o_selection res = { (uint32_t) st.layers[0].n_memory(), config.n_memory(pos), {} };
    res.from.resize(st.layers.size());

    // Layers are independent. Threads share the work of ranking, as a GPU waits for the memory sets; without further
    // threads this one does it.
    std::atomic<uint32_t> next { 0 };
    const auto build = [&]() {
        for (uint32_t i = next++; i < st.layers.size(); i = next++) {
            res.from[i] = build_memory_set(i, pos);
        }
    };
    std::vector<std::future<void>> others;
    try {
        for (size_t n = std::min<size_t>({ st.layers.size(), std::thread::hardware_concurrency(), 8 });
                st.is_scored && n > 1; --n) {
            others.push_back(std::async(std::launch::async, build));
        }
    } catch (const std::system_error &) { // no more threads may start
    }
    build();
    for (auto & other : others) {
        other.get();
    }

    h2o_checkpoint r = st.record(pos, pos);
    r.n_scored = pos;
    st.checkpoints.insert_or_assign(pos, std::move(r));

    return res;
}

// a layer's KV heads get the mean of their scores; they have the same positions
static void share_scores(std::vector<std::vector<float>> & scores) {
    for (size_t i = 0; i < scores[0].size(); ++i) {
        float sum = 0.0f;
        for (const auto & s : scores) {
            sum += s[i];
        }
        for (auto & s : scores) {
            s[i] = sum/scores.size();
        }
    }
}

std::vector<uint32_t> h2o_sequence::build_memory_set(uint32_t i_layer, uint32_t chunk_end) {
    auto & layer = st.layers[i_layer];

    const uint32_t chunk_start = config.chunk_start(chunk_end - 1);
    const size_t   n_before    = layer.n_memory();
    const size_t   n           = config.n_memory(chunk_end);

    if (st.is_scored) {
        layer.grow(chunk_end);
    }
    std::vector<std::vector<int32_t>> pos  (layer.n_head_kv);
    std::vector<std::vector<float>>   score(layer.n_head_kv);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        const auto   memory = layer.memory.begin() + h*n_before;
        const size_t n_kept = std::lower_bound(memory, memory + n_before, (int32_t) chunk_start) - memory;

        pos[h].assign(memory, memory + n_kept);
        pos[h].resize(n_kept + chunk_end - chunk_start);
        std::iota(pos[h].begin() + n_kept, pos[h].end(), chunk_start);

        score[h].resize(pos[h].size());
        for (size_t i = 0; st.is_scored && i < n_kept; ++i) {
            score[h][i] = layer.memory_score(h, i);
        }
        for (uint32_t p = chunk_start; st.is_scored && p < chunk_end; ++p) {
            score[h][n_kept + p - chunk_start] = layer.score(h, p);
        }
    }
    // what a position has received, before heads share it
    const auto received = score;
    if (config.shared_heads) {
        share_scores(score);
    }

    std::vector<int32_t>  memory;
    std::vector<float>    kept(layer.n_head_kv*n);
    std::vector<uint32_t> from(layer.n_head_kv*n);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        const auto chosen = h2o_select_memory(config, chunk_end, pos[h], score[h]);
        memory.insert(memory.end(), chosen.begin(), chosen.end());

        for (size_t k = 0, i = 0; k < n; ++k) {
            for (; pos[h][i] < chosen[k]; ++i) {}
            from[h*n + k] = i;
            // a set by hand may have lacked a sink
            kept[h*n + k] = (st.is_scored && pos[h][i] != chosen[k] ? layer.score(h, chosen[k]) : received[h][i])*
                config.ema_alpha;
        }
    }

    layer.memory = std::move(memory);
    if (config.evict) {
        layer.scores.clear();
        layer.first = chunk_start + config.chunk_size;
        if (st.is_scored) {
            layer.memory_scores = std::move(kept);
        }
    } else if (st.is_scored) {
        for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
            for (size_t i = 0; i < n; ++i) {
                layer.memory_score(h, i) = kept[h*n + i];
            }
        }
    }
    layer.n_built++;
    layer.memory_end = chunk_end;

    return from;
}

bool h2o_sequence::set_memory(uint32_t i_layer, std::vector<int32_t> memory) {
    auto & layer = st.layers[i_layer];

    const bool closes = close_chunk(st.n_tokens).has_value();
    if (st.is_scored) {
        layer.grow(st.n_tokens); // generated tokens may have no scores
    }
    layer.memory     = std::move(memory);
    layer.memory_end = st.n_tokens;
    st.is_by_hand    = true;

    auto it = st.checkpoints.find(st.n_tokens);
    if (it != st.checkpoints.end()) {
        it->second.is_by_hand = true;
        it->second.layers[i_layer] = st.record(st.n_tokens, st.n_tokens).layers[i_layer];
    }
    return closes;
}
