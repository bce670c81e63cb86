#pragma once

#include "h2o/store/cold/codec.h"
#include "h2o/store/kv-rows.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// Lists of positions, as many for each head.
struct h2o_cold_lists {
    const int32_t * pos; // [n_head, n_lists, n], ascending in each list, then -1
    size_t          n_head;
    size_t          n_lists;
    size_t          n;
    bool            in_order; // a head's rows come as in its lists; else row i is of position i

    size_t  n_each() const { return n_lists*n; }
    int32_t row_of(size_t i) const { return pos[i] < 0 ? -1 : in_order ? i % n_each() : pos[i]; }
};

// K and V of all positions of a sequence's closed chunks, as stored in the cache: rows of all heads. Sequences that
// share chunks share their rows. Nodes of a step's graph fetch rows from here, by layer.
class h2o_cold_store {
public:
    // row_sizes: bytes of each layer's rows of K and V
    // codec: NULL if nothing is encoded
    h2o_cold_store(std::shared_ptr<h2o_cold_place> place, std::shared_ptr<h2o_cold_codec> codec, uint32_t chunk_size,
            std::vector<std::array<size_t, 2>> row_sizes)
        : chunk_size(chunk_size), row_sizes(std::move(row_sizes)), codec(std::move(codec)), place(std::move(place)) {}

    // an empty store of the same context
    std::unique_ptr<h2o_cold_store> empty_like() const {
        return std::make_unique<h2o_cold_store>(place, codec, chunk_size, row_sizes);
    }

    uint32_t n_chunks() const { return chunks.size(); }

    // The next chunk: rows(layer, part) are all of its rows. Throws std::runtime_error, and adds nothing, without room.
    void append(const std::function<std::vector<uint8_t>(size_t layer, h2o_kv_part part)> & rows);

    // forgets all chunks from n on
    void truncate(uint32_t n);

    // takes over the chunks of another store of the context
    void share(const h2o_cold_store & other);

    // a position of a stored chunk, and the destination of its row
    struct wanted {
        int32_t   pos;
        uint8_t * dst;
    };

    // Several threads may read. Throws std::runtime_error.
    void read(size_t layer, h2o_kv_part part, const std::vector<wanted> & rows) const;

    // the rows of the positions [first, first + n), one after another
    void read_range(size_t layer, h2o_kv_part part, uint32_t first, size_t n, uint8_t * dst) const;

    // Writes each head's part of the rows of its positions in [begin, end) to dst, rows of all heads. Throws
    // std::runtime_error.
    void read_lists(size_t layer, h2o_kv_part part, const h2o_cold_lists & lists, uint32_t begin, uint32_t end,
            uint8_t * dst) const;

    // a node of a graph could not fetch rows: for check()
    void keep_failure(const std::string & what);

    // throws std::runtime_error if there was a failure since the last time
    void check();

    // bytes of all chunks
    uint64_t n_bytes() const;

    const uint32_t chunk_size;

    const std::vector<std::array<size_t, 2>> row_sizes;

    const std::shared_ptr<h2o_cold_codec> codec;

private:
    const std::shared_ptr<h2o_cold_place> place;

    std::vector<std::shared_ptr<h2o_cold_chunk>> chunks;

    std::mutex  mutex;
    std::string failure;
};
