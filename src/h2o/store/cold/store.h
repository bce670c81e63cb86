#pragma once

#include "h2o/store/cold/codec.h"
#include "h2o/store/kv-rows.h"

#include <functional>

// K and V of all positions of a sequence's closed chunks, as stored in the cache: rows of all heads. Sequences that
// share chunks share their rows.
class h2o_cold_store {
public:
    // row_sizes: bytes of each layer's rows of K and V
    // codec: NULL if nothing is encoded
    h2o_cold_store(std::shared_ptr<h2o_cold_place> place, std::shared_ptr<h2o_cold_codec> codec, uint32_t chunk_size,
            std::vector<std::array<size_t, 2>> row_sizes)
        : chunk_size(chunk_size), row_sizes(std::move(row_sizes)), codec(std::move(codec)), place(std::move(place)) {}

    // an empty store of the same context
    h2o_cold_store empty_like() const { return { place, codec, chunk_size, row_sizes }; }

    uint32_t n_chunks() const { return chunks.size(); }

    // The next chunk: rows(layer, part) are all of its rows. Throws std::runtime_error, and adds nothing, without room.
    void append(const std::function<std::vector<uint8_t>(size_t layer, h2o_kv_part part)> & rows);

    // forgets all chunks from n on
    void truncate(uint32_t n);

    // becomes a copy of the store of another sequence of the context
    void share(const h2o_cold_store & other);

    // changes when chunks were dropped or replaced
    uint64_t version() const { return n_changes; }

    // all rows of a chunk
    std::vector<uint8_t> chunk_rows(uint32_t chunk, size_t layer, h2o_kv_part part) const;

    // a row of a stored chunk, and its destination
    struct wanted {
        int32_t   pos;
        uint8_t * dst;
    };

    // Several threads may read. Throws std::runtime_error.
    void read(size_t layer, h2o_kv_part part, const std::vector<wanted> & rows) const;

    // the rows [first, first + n), one after another
    void read_range(size_t layer, h2o_kv_part part, uint32_t first, size_t n, uint8_t * dst) const;

    // bytes of all chunks
    uint64_t n_bytes() const;

    const uint32_t chunk_size;

    const std::vector<std::array<size_t, 2>> row_sizes;

    const std::shared_ptr<h2o_cold_codec> codec;

private:
    // consecutive rows of a chunk with consecutive destinations
    struct range {
        const h2o_cold_chunk * chunk;
        uint32_t  first; // row
        uint32_t  n;
        uint8_t * dst;

        std::shared_ptr<const h2o_cold_rows> stored;
    };

    void read_ranges(size_t layer, h2o_kv_part part, range * ranges, size_t n) const;

    const std::shared_ptr<h2o_cold_place> place;

    std::vector<std::shared_ptr<h2o_cold_chunk>> chunks;

    uint64_t n_changes = 0;
};
