#pragma once

#include "h2o/config/config.h"
#include "h2o/text/lookup.h"

#include <algorithm>
#include <cstdint>
#include <vector>

using h2o_lookup_log = std::vector<h2o_lookup_row>; // by query

// The text of a sequence, and what its queries look up in it. A tile is T queries.
class h2o_tiles {
public:
    // A part of the log.
    struct view {
        const h2o_lookup_row * begin;
        const h2o_lookup_row * end;
    };

    explicit h2o_tiles(const h2o_config & config);

    void append(const int32_t * ids, uint32_t n) { index.append(ids, n); }

    // forgets the tokens from position n on, and their lookups
    void truncate(uint32_t n);

    // the tokens [q0, q1) choose; none after them has
    void choose(uint32_t q0, uint32_t q1) { index.choose(q0, q1, rows); }

    // what the queries [q0, q1) have asked for
    view asked(uint32_t q0, uint32_t q1) const;

    // what queries of one tile see, each row from the query that asked for it on
    view seen(uint32_t q0, uint32_t q1) const;

    // the positions that queries of any tiles see, ascending
    std::vector<int32_t> positions_seen(uint32_t q0, uint32_t q1) const;

    // the positions that queries of n_tiles whole tiles may see at most, of a text of n tokens
    uint32_t n_seen_max(uint32_t n_tiles, uint32_t n) const { return std::min<uint64_t>(n,
            budget + (uint64_t) n_tiles*tile*index.n_new()); }

    // what a query may add
    uint32_t n_new() const { return index.n_new(); }

    const std::vector<int32_t> & text() const { return index.text(); }
    const h2o_lookup_log & log() const { return rows; }

    // queries before this one are forgotten: the log has only the rows of theirs that later queries see
    uint32_t start() const { return first_kept; }

    // Forgets queries before this one. They cannot be gone back to.
    void forget(uint32_t query);

    // as if appended
    void assign_text(const std::vector<int32_t> & ids);

    // as if chosen, and forgotten before the start
    void assign_log(h2o_lookup_log log, uint32_t start);

private:
    uint32_t tile;
    uint32_t budget;

    h2o_lookup index;

    h2o_lookup_log rows;

    uint32_t first_kept = 0;
};
