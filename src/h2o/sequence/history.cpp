// Checkpoints of a sequence: kept, restored and dropped.

#include "h2o/sequence/sequence.h"

#include <algorithm>
#include <iterator>
#include <utility>

void h2o_sequence::restore(const h2o_checkpoint & record) {
    for (auto & layer : st.layers) {
        const auto & r = record.layers[layer.index];

        layer.forget_extra_keys(config.tile_of(record.n_tokens));
        if (layer.attention.size() > (size_t) record.n_tokens*layer.n_head_kv) {
            layer.attention.clear(); // of tokens that are removed
        }
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
    st.exact_end  = st.exact_end < st.n_tokens ? st.exact_end : UINT32_MAX;

    st.checkpoints.erase(st.checkpoints.upper_bound(st.n_tokens), st.checkpoints.end());
    for (auto & [pos, checkpoint] : st.checkpoints) {
        if (checkpoint.layers[0].n_built == st.n_memory_sets()) { // of the open chunk: they are where they were
            checkpoint.rows.reset();
        }
    }
    if (st.n_tokens % config.chunk_size == 0 && st.n_memory_sets()*config.chunk_size < st.n_tokens) {
        st.checkpoints.erase(st.n_tokens); // the chunk that ends here is open again
    }
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

void h2o_sequence::copy_from(const h2o_sequence & src) {
    st = src.st;
    st.unseen.clear();
}

void h2o_sequence::arrange(uint32_t n_kept, const std::vector<h2o_piece> & pieces) {
    if (n_kept < st.n_tokens) {
        if (!past().can_rewind(n_kept)) { // the last ones chose with others of their tile
            st.exact_end = std::min(st.exact_end, n_kept - n_kept % config.chunk_size % config.tile);
        }
        restore(past().checkpoint_of(n_kept));
    }
    st.unseen.clear();
    for (const auto & piece : pieces) {
        st.unseen.emplace(piece.to, piece.to + piece.n);
    }
    take_over_unseen();
}

void h2o_sequence::take_over_unseen() {
    for (auto it = st.unseen.begin(); it != st.unseen.end() && it->first == st.n_tokens; it = st.unseen.erase(it)) {
        st.exact_end = std::min(st.exact_end, st.n_tokens);
        restore(past().record_at(it->second));
        set_generated_start(st.n_tokens);
        forget_checkpoints();
    }
}

void h2o_sequence::drop_unseen(uint32_t end) {
    st.unseen.erase(st.unseen.begin(), st.unseen.lower_bound(end));
}

void h2o_sequence::restore(h2o_saved_sequence saved) {
    st.unseen.clear();
    st.exact_end = saved.record.is_moved ? 0 : UINT32_MAX;
    st.is_scored = wants_scores && (saved.record.is_scored || saved.record.n_tokens == 0);
    for (auto & layer : st.layers) {
        layer.extra_keys.clear();
    }
    restore(saved.record);
    st.checkpoints     = std::move(saved.checkpoints);
    st.generated_start = st.n_tokens;
    forget_checkpoints();
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

// Keeps n of these checkpoints, which ascend. Those go first whose loss costs least: an early boundary, but not the first, then the mark
// that is nearest to the one before it; never the last. forget(checkpoint) makes it go.
template <typename F>
static void thin_out(std::vector<h2o_checkpoint *> some, size_t n, uint32_t chunk_size, const F & forget) {
    while (some.size() > n) {
        std::vector<std::pair<bool, uint32_t>> costs;
        for (size_t i = 0; i + 1 < some.size(); ++i) {
            const uint32_t pos = some[i]->n_tokens;
            const bool is_mark = pos % chunk_size != 0;
            costs.push_back({ is_mark, is_mark ? pos - (i > 0 ? some[i - 1]->n_tokens : 0) : i == 0 });
        }
        const auto i = some.begin() + (std::min_element(costs.begin(), costs.end()) - costs.begin());
        forget(**i);
        some.erase(i);
    }
}

// the checkpoints for which f(checkpoint) holds
template <typename F>
static std::vector<h2o_checkpoint *> those(std::map<uint32_t, h2o_checkpoint> & checkpoints, const F & f) {
    std::vector<h2o_checkpoint *> res;
    for (auto & [pos, checkpoint] : checkpoints) {
        if (f(checkpoint)) {
            res.push_back(&checkpoint);
        }
    }
    return res;
}

void h2o_sequence::mark(std::shared_ptr<const std::vector<uint8_t>> side) {
    if (st.n_tokens % config.chunk_size == 0 || !past().needs_mark(side != nullptr)) {
        return;
    }
    set_generated_start(st.n_tokens);
    auto & checkpoint = st.checkpoints.insert_or_assign(st.n_tokens, st.record(st.n_tokens, st.open_start())).first->second;
    checkpoint.side = std::move(side);

    const auto marks = those(st.checkpoints, [&](const auto & c) { return c.n_tokens % config.chunk_size != 0; });
    thin_out(marks, MAX_MARKS, config.chunk_size, [&](const auto & c) { st.checkpoints.erase(st.checkpoints.find(c.n_tokens)); });
}

void h2o_sequence::set_rows(std::shared_ptr<const h2o_row_copies> rows, uint32_t start) {
    if (!past().has_marks(start)) {
        return;
    }
    const h2o_row_copies * before = nullptr;
    const auto first_marks = those(st.checkpoints, [&](auto & c) { // of each chunk that has copies
        if (c.layers[0].n_built*config.chunk_size == start) {
            c.rows = rows;
        }
        return c.rows && c.n_tokens % config.chunk_size != 0 && std::exchange(before, c.rows.get()) != c.rows.get();
    });
    thin_out(first_marks, MAX_ROWS, config.chunk_size, [&](const auto & c) {
        const auto forgotten = c.rows;
        for (auto & [pos, checkpoint] : st.checkpoints) {
            if (checkpoint.rows == forgotten) {
                checkpoint.rows.reset();
            }
        }
    });
}

// of checkpoints after this position
static void forget_sides(std::map<uint32_t, h2o_checkpoint> & checkpoints, uint32_t after, uint32_t chunk_size) {
    const auto kept = those(checkpoints, [&](const auto & c) { return c.n_tokens > after && c.side; });
    const size_t n_bytes = kept.empty() ? 0 : kept.back()->side->size();
    const size_t n_max   = std::clamp<size_t>(h2o_sequence::MAX_SIDE_BYTES/std::max<size_t>(n_bytes, 1), 2,
            h2o_sequence::MAX_SIDES);
    thin_out(kept, n_max, chunk_size, [](auto & c) { c.side.reset(); });
}

void h2o_sequence::set_side(std::vector<uint8_t> side, uint32_t call_start) {
    auto & boundary = st.checkpoints.at(st.n_memory_sets()*config.chunk_size);
    boundary.side = std::make_shared<const std::vector<uint8_t>>(std::move(side));
    forget_sides(st.checkpoints, call_start, config.chunk_size);
}

// All boundaries but the last, unless they are kept; marks that are not needed; with eviction also checkpoints without rows.
void h2o_sequence::forget_checkpoints() {
    const uint32_t n_closed = st.n_memory_sets()*config.chunk_size;

    for (auto it = st.checkpoints.begin(); it != st.checkpoints.end();) {
        const auto & [pos, c] = *it;
        const bool is_boundary = pos % config.chunk_size == 0;
        const bool has_rows    = !config.evict || config.has_cold_store();
        const bool is_kept     = pos >= n_closed || c.rows || (is_boundary ? keep_history : has_rows);

        it = is_kept && (is_boundary || past().needs_mark(c.side != nullptr)) ? std::next(it) : st.checkpoints.erase(it);
    }
    forget_sides(st.checkpoints, 0, config.chunk_size);
}
