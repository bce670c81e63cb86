#include "h2o/sequence/past.h"

#include "h2o/select/select.h"

#include <algorithm>
#include <iterator>
#include <utility>

h2o_checkpoint h2o_past::record_at(uint32_t pos) const {
    const auto near = h2o_select_near(config, config.chunk_start(pos));

    h2o_checkpoint res = { pos, pos, pos, false, false, st.exact_end < pos, {}, nullptr, nullptr };
    for (const auto & layer : st.layers) {
        h2o_checkpoint::layer r;
        r.n_built = pos/config.chunk_size;
        for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
            r.memory.insert(r.memory.end(), near.begin(), near.end());
        }
        res.layers.push_back(std::move(r));
    }
    return res;
}

// With an index of keys the queries of a tile choose together: a part of a tile cannot be removed.
uint32_t h2o_past::rewind_step() const {
    return st.is_scored || st.is_by_hand ? 0 : config.has_key_index() ? config.tile : 1;
}

bool h2o_past::is_on_grid(uint32_t pos) const {
    const uint32_t step = rewind_step();

    return step > 0 && pos % config.chunk_size % step == 0 &&
            (!config.evict || pos >= closed_end());
}

// Tokens from pos on have changed only what can be undone without a checkpoint.
bool h2o_past::is_open(uint32_t pos) const {
    return pos >= closed_end() && (pos >= st.n_scored || is_on_grid(pos));
}

// K and V that have moved since come back from a cold store, or from copies.
bool h2o_past::has_rows(const h2o_checkpoint & checkpoint) const {
    return !config.evict || config.has_cold_store() || checkpoint.rows || checkpoint.n_tokens >= closed_end();
}

bool h2o_past::can_rewind(uint32_t pos) const {
    const auto it = st.checkpoints.find(pos);

    return is_open(pos) || is_on_grid(pos) || (it != st.checkpoints.end() && has_rows(it->second));
}

uint32_t h2o_past::nearest(uint32_t pos) const {
    if (pos > closed_end() || (rewind_step() > 0 && !config.evict)) {
        return pos;
    }
    const auto it = st.checkpoints.upper_bound(pos);

    return it == st.checkpoints.begin() ? 0 : std::prev(it)->first;
}

bool h2o_past::has_marks(uint32_t start) const {
    const auto it = st.checkpoints.upper_bound(start);

    return it != st.checkpoints.end() && it->first < start + config.chunk_size && !is_generated(it->first);
}

std::vector<uint32_t> h2o_past::state_points() const {
    std::vector<uint32_t> res;
    const auto            add = [&](uint32_t pos) {
        if (can_rewind(pos) && (pos == st.n_tokens || !is_generated(pos))) {
            res.push_back(pos);
        }
    };

    const uint32_t n_closed = closed_end();

    for (auto it = st.checkpoints.begin(); it != st.checkpoints.lower_bound(n_closed); ++it) {
        add(it->first);
    }
    for (uint32_t pos = std::max(n_closed, 1u); pos <= st.n_tokens; ++pos) {
        add(pos);
    }
    return res;
}

h2o_checkpoint h2o_past::checkpoint_of(uint32_t pos) const {
    if (const auto it = st.checkpoints.find(pos); it != st.checkpoints.end()) {
        return it->second;
    }
    return pos < closed_end() ? record_at(pos) : st.record(pos, st.open_start());
}

std::shared_ptr<const std::vector<uint8_t>> h2o_past::side_of(uint32_t pos) const {
    const auto it = st.checkpoints.find(pos);

    return it == st.checkpoints.end() ? nullptr : it->second.side;
}
