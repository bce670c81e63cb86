#include "h2o/text/tiles.h"

#include <algorithm>
#include <utility>

h2o_tiles::h2o_tiles(const h2o_config & config) : tile(config.tile), budget(config.lookup_budget),
    index({ config.chunk_size, tile, budget, config.sink_tokens, config.local_window }) {}

void h2o_tiles::truncate(uint32_t n) {
    index.truncate(std::min(n, index.n_tokens()));

    rows.resize(asked(0, n).end - rows.data());
    first_kept = std::min(first_kept, n);
}

h2o_tiles::view h2o_tiles::asked(uint32_t q0, uint32_t q1) const {
    const auto before = [](const h2o_lookup_row & row, int64_t query) { return row.query < query; };

    const h2o_lookup_row * end = rows.data() + rows.size();
    return {
        std::lower_bound(rows.data(), end, (int64_t) q0, before),
        std::lower_bound(rows.data(), end, (int64_t) q1, before),
    };
}

h2o_tiles::view h2o_tiles::seen(uint32_t q0, uint32_t q1) const {
    return { rows.data() + index.first_seen(rows, q0), asked(q0, q1).end };
}

std::vector<int32_t> h2o_tiles::positions_seen(uint32_t q0, uint32_t q1) const {
    const auto view = seen(q0, q1);

    std::vector<int32_t> res;
    for (const auto * row = view.begin; row < view.end; ++row) {
        res.push_back(row->pos);
    }
    std::sort(res.begin(), res.end());
    res.erase(std::unique(res.begin(), res.end()), res.end());

    return res;
}

void h2o_tiles::forget(uint32_t query) {
    if (query > first_kept) {
        rows.erase(rows.begin(), rows.begin() + index.first_seen(rows, query));
        first_kept = query;
    }
}

void h2o_tiles::assign_text(const std::vector<int32_t> & ids) {
    index.truncate(0);
    index.append(ids.data(), ids.size());
}

void h2o_tiles::assign_log(h2o_lookup_log log, uint32_t start) {
    rows       = std::move(log);
    first_kept = start;
}
