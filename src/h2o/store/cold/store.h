#pragma once

#include "h2o/store/cold/codec.h"

#include <functional>

// K and V of all positions of a sequence's closed chunks, as they were in the cache: rows of all heads. What is evicted is found
// here. Sequences that share chunks share what is stored.
class h2o_cold_store {
public:
    enum part_t { K = 0, V = 1 };

    // row_sizes: bytes of each layer's rows of K and V
    // codec: NULL if nothing is encoded
    h2o_cold_store(std::shared_ptr<h2o_cold_place> place, std::shared_ptr<h2o_cold_codec> codec, uint32_t chunk_size, std::vector<std::array<size_t, 2>> row_sizes)
        : chunk_size(chunk_size), row_sizes(std::move(row_sizes)), codec(std::move(codec)), place(std::move(place)) {}

    // of the same context, without chunks
    h2o_cold_store empty_like() const { return { place, codec, chunk_size, row_sizes }; }

    uint32_t n_chunks() const { return chunks.size(); }

    // The next chunk: rows(layer, part) are all of its rows. Throws std::runtime_error if there is no room, and has added nothing.
    void append(const std::function<std::vector<uint8_t>(size_t layer, part_t part)> & rows);

    // forgets all chunks from n on
    void truncate(uint32_t n);

    // becomes what the other one is, of a sequence of the same context
    void share(const h2o_cold_store & other);

    // changes when what was here is not any more
    uint64_t version() const { return n_changes; }

    // all rows of a chunk
    std::vector<uint8_t> chunk_rows(uint32_t chunk, size_t layer, part_t part) const;

    // a row, of a chunk that is here, and where it belongs
    struct wanted {
        int32_t   pos;
        uint8_t * dst;
    };

    // Several threads may read. Throws std::runtime_error.
    void read(size_t layer, part_t part, const std::vector<wanted> & rows) const;

    // the rows [first, first + n), one after another
    void read_range(size_t layer, part_t part, uint32_t first, size_t n, uint8_t * dst) const;

    // of all chunks
    uint64_t n_bytes() const;

    const uint32_t chunk_size;

    const std::vector<std::array<size_t, 2>> row_sizes;

    const std::shared_ptr<h2o_cold_codec> codec;

private:
    // neighbours in a chunk, which are neighbours where they belong
    struct range {
        const h2o_cold_chunk * chunk;
        uint32_t  first; // row
        uint32_t  n;
        uint8_t * dst;

        std::shared_ptr<const h2o_cold_rows> stored;
    };

    void read_ranges(size_t layer, part_t part, range * ranges, size_t n) const;

    const std::shared_ptr<h2o_cold_place> place;

    std::vector<std::shared_ptr<h2o_cold_chunk>> chunks;

    uint64_t n_changes = 0;
};
