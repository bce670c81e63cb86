#pragma once

#include "h2o/sequence/state.h"
#include "h2o/store/cold/codec.h"
#include "h2o/store/kv-rows.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

struct ggml_h2o_attn_source_layout;

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

    // Sets the positions whose rows the next step fetches, ascending.
    void set_positions(std::vector<int32_t> positions);

    // the index of one of them
    int32_t row_of(int32_t pos) const;

    // Writes their rows of a layer to dst, and which of them are in memory sets: a source of ggml_h2o_attn. This and
    // the next one do the ith part of the work of nth threads. They throw std::runtime_error.
    void fetch(const h2o_layer & layer, const ggml_h2o_attn_source_layout & source, size_t n_offloaded, uint8_t * dst,
            int ith, int nth);

    // The same of chosen positions, and of position 0: row i holds position i, of n. Other rows are not written.
    void fetch_chosen(size_t layer, const int32_t * chosen, size_t n_chosen, const ggml_h2o_attn_source_layout & source,
            size_t n, uint8_t * dst, int ith, int nth);

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
    // Fetched rows are kept for the next steps: generated tokens look up nearly the same as the tokens before them. The
    // least recently used positions make room. They are the same in all layers.
    struct kept_position {
        size_t   slot; // row of kept_bytes
        uint64_t used; // n_steps then
    };

    static constexpr size_t MAX_KEPT = 512; // a step with more is a prompt's: it neither uses nor changes the kept rows

    void keep_positions();

    // one of the step's positions
    struct step_position {
        int32_t pos;
        bool    is_missing; // its row is read from the chunk
        size_t  slot;       // if rows are kept
    };

    const std::shared_ptr<h2o_cold_place> place;

    std::vector<std::shared_ptr<h2o_cold_chunk>> chunks;

    std::vector<step_position> positions;

    bool   keeps_rows     = false; // of the step
    size_t n_layers_begun = 0;     // likewise

    std::unordered_map<int32_t, kept_position> kept; // by position

    uint64_t n_steps = 0;

    std::vector<std::array<std::vector<uint8_t>, 2>> kept_bytes; // by layer: of K, of V

    std::mutex  mutex;
    std::string failure;
};
