#pragma once

#include "h2o-cold-place.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

// Where the rows of a chunk are, of a layer's K or V.
struct h2o_cold_rows {
    std::shared_ptr<const h2o_cold_block> bytes;

    // Where each block of rows ends in bytes. A block that is as long there as its rows is these, a shorter one a frame of the codec.
    // Empty: all rows as they are.
    std::vector<uint32_t> ends;
};

struct h2o_cold_part {
    uint64_t id       = 0; // no other part has or had it
    size_t   layer    = 0; // index
    int      part     = 0; // K, V
    uint32_t first    = 0; // position
    uint32_t n_rows   = 0;
    size_t   row_size = 0; // bytes

    h2o_cold_part() = default;
    h2o_cold_part(uint64_t id, size_t layer, int part, uint32_t first, uint32_t n_rows, size_t row_size)
        : id(id), layer(layer), part(part), first(first), n_rows(n_rows), row_size(row_size) {}

    // Another thread puts blocks in place of the rows: what is loaded once remains readable.
    std::shared_ptr<const h2o_cold_rows> load() const { return std::atomic_load(&rows); }

    void store(h2o_cold_rows r) { std::atomic_store(&rows, std::make_shared<const h2o_cold_rows>(std::move(r))); }

private:
    std::shared_ptr<const h2o_cold_rows> rows;
};

// K and V of a chunk, by layer.
struct h2o_cold_chunk {
    std::vector<std::array<h2o_cold_part, 2>> parts;

    bool is_submitted = false; // somebody has encoded it, or will
    bool is_refused   = false; // it was not taken at once
};
