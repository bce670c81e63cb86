#pragma once

#include "h2o-config.h"
#include "h2o-lookup.h"

#include <cstdint>
#include <vector>

using h2o_tile_rows = std::vector<std::vector<h2o_lookup_row>>; // by tile

// The text of a sequence, and what its tiles look up in it.
class h2o_tiles {
public:
    explicit h2o_tiles(const h2o_config & config);

    void append(const int32_t * ids, uint32_t n) { index.append(ids, n); }

    // forgets the tokens from position n on, and what they asked for
    void truncate(uint32_t n);

    // the tokens [q0, q1), of a prompt, choose
    void choose(uint32_t q0, uint32_t q1);

    // what a tile has looked up so far, by the query that asked
    const std::vector<h2o_lookup_row> & rows(uint32_t tile) const;

    const std::vector<int32_t> & text() const { return index.text(); }

    // as if appended and chosen
    void assign(const std::vector<int32_t> & ids, h2o_tile_rows rows);

    const uint32_t tile;
    const uint32_t budget;

private:
    h2o_lookup index;

    h2o_tile_rows chosen;
};
