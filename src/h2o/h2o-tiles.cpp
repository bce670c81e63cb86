#include "h2o-tiles.h"

#include <algorithm>
#include <utility>

static h2o_lookup_params lookup_params(const h2o_config & config) {
    h2o_lookup_params res;
    res.chunk_size   = config.chunk_size;
    res.tile         = config.tile;
    res.turn         = 1; // no query's rows depend on a later one
    res.budget       = config.lookup_budget;
    res.sink_tokens  = config.sink_tokens;
    res.local_window = config.local_window;
    return res;
}

h2o_tiles::h2o_tiles(const h2o_config & config) : tile(config.tile), budget(config.lookup_budget), index(lookup_params(config)) {
}

void h2o_tiles::truncate(uint32_t n) {
    index.truncate(std::min(n, index.n_tokens()));

    chosen.resize(std::min<size_t>(chosen.size(), (n + tile - 1)/tile));
    if (!chosen.empty()) {
        auto & last = chosen.back();
        last.erase(std::remove_if(last.begin(), last.end(), [n](const h2o_lookup_row & row) { return row.first >= (int32_t) n; }), last.end());
    }
}

void h2o_tiles::choose(uint32_t q0, uint32_t q1) {
    chosen.resize(std::max<size_t>(chosen.size(), (q1 + tile - 1)/tile));

    for (uint32_t q = q0; q < q1; ) {
        const uint32_t end = std::min(q1, (q/tile + 1)*tile);
        index.choose(q, end, chosen[q/tile]);
        q = end;
    }
}

const std::vector<h2o_lookup_row> & h2o_tiles::rows(uint32_t tile) const {
    static const std::vector<h2o_lookup_row> none;

    return tile < chosen.size() ? chosen[tile] : none;
}

void h2o_tiles::assign(const std::vector<int32_t> & ids, h2o_tile_rows rows) {
    index.truncate(0);
    index.append(ids.data(), ids.size());
    chosen = std::move(rows);
}
