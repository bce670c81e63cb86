// Checkpoints of a sequence: made, restored and dropped.

#include "h2o/sequence/sequence.h"

#include "h2o/select/select.h"

#include <algorithm>
#include <iterator>
#include <utility>

h2o_checkpoint h2o_sequence::record(uint32_t end, uint32_t first) const {
    const uint32_t n_scored = end > st.n_tokens ? end : std::min(st.n_scored, end);
    h2o_checkpoint res = { end, n_scored, first, st.is_scored, st.is_by_hand, {}, nullptr };

    for (const auto & layer : st.layers) {
        res.layers.push_back(record(layer, end, first));
    }
    return res;
}

h2o_checkpoint::layer h2o_sequence::record(const h2o_layer & layer, uint32_t end, uint32_t first) const {
    h2o_checkpoint::layer res = { layer.n_built, layer.memory, {}, {} };
    if (!st.is_scored) {
        return res;
    }
    res.memory_scores.reserve(layer.memory.size());
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (size_t i = 0; i < layer.n_memory(); ++i) {
            res.memory_scores.push_back(layer.memory_score(h, i));
        }
    }
    const auto score = [&](uint32_t pos) { // those of unscored tokens are 0
        return layer.scores.begin() + (size_t) (std::min(pos, layer.end()) - layer.first)*layer.n_head_kv;
    };
    res.scores.assign(score(first), score(end));
    res.scores.resize((size_t) (end - first)*layer.n_head_kv);
    return res;
}

h2o_checkpoint h2o_sequence::record_at(uint32_t pos) const {
    const auto near = h2o_select_near(config, config.chunk_start(pos));

    h2o_checkpoint res = { pos, pos, pos, false, false, {}, nullptr };
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

void h2o_sequence::restore(const h2o_checkpoint & record) {
    for (auto & layer : st.layers) {
        const auto & r = record.layers[layer.index];

        layer.forget_extra_keys(config.tile_of(record.n_tokens));
        layer.memory     = r.memory;
        layer.n_built    = r.n_built;
        layer.memory_end = r.n_built*config.chunk_size;

        if (config.evict) {
            layer.first = record.first;
        }
        if (!st.is_scored) {
            continue;
        }
        if (config.evict) {
            layer.memory_scores = r.memory_scores;
        }
        layer.scores.resize((size_t) (record.first - layer.first)*layer.n_head_kv);
        layer.scores.insert(layer.scores.end(), r.scores.begin(), r.scores.end());
        for (uint32_t h = 0; h < layer.n_head_kv && !config.evict; ++h) {
            for (size_t i = 0; i < layer.n_memory(); ++i) {
                layer.memory_score(h, i) = r.memory_scores[h*layer.n_memory() + i];
            }
        }
    }

    st.n_tokens = record.n_tokens;
    st.n_scored = record.n_scored;
    st.generated_start = std::min(st.generated_start, st.n_tokens);
    st.is_by_hand = record.is_by_hand;

    st.checkpoints.erase(st.checkpoints.upper_bound(st.n_tokens), st.checkpoints.end());
    if (st.n_tokens % config.chunk_size == 0 && st.n_memory_sets()*config.chunk_size < st.n_tokens) {
        st.checkpoints.erase(st.n_tokens); // the chunk that ends here is open again
    }
    truncate_text();
}

static void drop_scores(std::map<uint32_t, h2o_checkpoint> & checkpoints) {
    for (auto & [pos, record] : checkpoints) {
        record.is_scored = false;
        for (auto & layer : record.layers) {
            layer.memory_scores.clear();
            layer.scores.clear();
        }
    }
}

void h2o_sequence::restore(h2o_saved_sequence saved) {
    if (saved.text) {
        st.text->assign_text(*saved.text);
    }
    if (saved.lookups) {
        st.text->assign_log(std::move(*saved.lookups), saved.lookup_start);
    }
    if (saved.checkpoints) { // it is all of a text
        st.is_scored = wants_scores && (saved.record.is_scored || saved.record.n_tokens == 0);
    }
    for (auto & layer : st.layers) {
        layer.extra_keys.clear();
    }
    restore(saved.record);
    if (saved.checkpoints) {
        st.checkpoints = std::move(*saved.checkpoints);
        st.generated_start = st.n_tokens;
        forget_checkpoints();
    }
    if (!st.is_scored) {
        drop_scores(st.checkpoints);
    }
}

void h2o_sequence::keep_scores(bool keep) {
    wants_scores = keep || config.ranks();
    if (st.n_tokens == 0) {
        st.is_scored = wants_scores;
    }
}

// With an index of keys the queries of a tile choose together: a part of a tile cannot be removed.
uint32_t h2o_sequence::rewind_step() const {
    return st.is_scored || st.is_by_hand ? 0 : config.has_key_index() ? config.tile : 1;
}

bool h2o_sequence::is_on_grid(uint32_t pos) const {
    const uint32_t step = rewind_step();

    return step > 0 && pos % config.chunk_size % step == 0 &&
            (!config.evict || pos >= st.n_memory_sets()*config.chunk_size);
}

// Tokens from pos on have changed only what can be undone without a checkpoint.
bool h2o_sequence::is_open(uint32_t pos) const {
    return pos >= st.n_memory_sets()*config.chunk_size && (pos >= st.n_scored || is_on_grid(pos));
}

bool h2o_sequence::is_recorded(uint32_t pos) const {
    // K and V that have moved since come back from a cold store only
    const bool has_rows = !config.evict || config.has_cold_store() || pos >= st.n_memory_sets()*config.chunk_size;

    return has_rows && st.checkpoints.count(pos) > 0;
}

bool h2o_sequence::can_rewind(uint32_t pos) const {
    return is_open(pos) || is_on_grid(pos) || is_recorded(pos);
}

std::vector<uint32_t> h2o_sequence::state_points() const {
    std::vector<uint32_t> res;
    const auto            add = [&](uint32_t pos) {
        if (is_open(pos) || (is_recorded(pos) && !is_generated(pos))) {
            res.push_back(pos);
        }
    };

    const uint32_t n_closed = st.n_memory_sets()*config.chunk_size;

    for (auto it = st.checkpoints.begin(); it != st.checkpoints.lower_bound(n_closed); ++it) {
        add(it->first);
    }
    for (uint32_t pos = std::max(n_closed, 1u); pos <= st.n_tokens; ++pos) {
        add(pos);
    }
    return res;
}

std::optional<h2o_checkpoint> h2o_sequence::checkpoint_of(uint32_t pos) const {
    if (is_open(pos)) {
        return {};
    }
    if (is_on_grid(pos)) {
        return record_at(pos);
    }
    const auto it = st.checkpoints.find(pos);

    return it == st.checkpoints.end() ? std::nullopt : std::optional(it->second);
}

void h2o_sequence::mark() {
    if (st.n_tokens % config.chunk_size == 0 || rewind_step() > 0) {
        return;
    }
    set_generated_start(st.n_tokens);
    st.checkpoints.insert_or_assign(st.n_tokens, record(st.n_tokens, st.open_start(config)));

    std::vector<uint32_t> marks;
    for (const auto & [pos, checkpoint] : st.checkpoints) {
        if (pos % config.chunk_size != 0) {
            marks.push_back(pos);
        }
    }
    if (marks.size() > MAX_MARKS) {
        st.checkpoints.erase(marks[MAX_MARKS/2]);
    }
}

void h2o_sequence::set_side(std::vector<uint8_t> side, uint32_t call_start) {
    st.checkpoints.at(st.n_memory_sets()*config.chunk_size).side = std::make_shared<const std::vector<uint8_t>>(std::move(side));
    forget_sides(call_start);
}

const std::vector<uint8_t> * h2o_sequence::side_of(uint32_t pos) const {
    const auto it = st.checkpoints.find(pos);

    return it == st.checkpoints.end() ? nullptr : it->second.side.get();
}

void h2o_sequence::rewind(uint32_t pos) {
    for (auto & layer : st.layers) {
        layer.forget_extra_keys(config.tile_of(pos));
        if (layer.end() > pos) {
            layer.set_end(pos);
        }
    }
    st.n_tokens = pos;
    st.n_scored = std::min(st.n_scored, pos);
    st.generated_start = std::min(st.generated_start, pos);
    st.checkpoints.erase(st.checkpoints.upper_bound(pos), st.checkpoints.end());
    truncate_text();
}

// all boundaries but the last, unless they are kept; with eviction also the starts of calls in closed chunks, and where
// positions tell as much all of these
void h2o_sequence::forget_checkpoints() {
    const uint32_t n_closed = st.n_memory_sets()*config.chunk_size;

    for (auto it = st.checkpoints.begin(); it != st.checkpoints.end();) {
        const bool is_boundary = it->first % config.chunk_size == 0;
        const bool is_kept     = (is_boundary || rewind_step() == 0) &&
                (it->first >= n_closed || (is_boundary ? keep_history : !config.evict));

        it = is_kept ? std::next(it) : st.checkpoints.erase(it);
    }
}

void h2o_sequence::forget_sides(uint32_t after) {
    std::vector<h2o_checkpoint *> kept;
    for (auto it = st.checkpoints.upper_bound(after); it != st.checkpoints.end(); ++it) {
        if (it->second.side) {
            kept.push_back(&it->second);
        }
    }
    if (kept.empty()) {
        return;
    }
    const size_t n = std::clamp<size_t>(MAX_SIDE_BYTES/std::max<size_t>(kept.back()->side->size(), 1), 2, MAX_SIDES);
    for (size_t i = 1; i + n - 1 < kept.size(); ++i) {
        kept[i]->side.reset();
    }
}

void h2o_sequence::truncate_text() {
    if (st.text) {
        st.text->truncate(st.n_tokens);
    }
}
