#pragma once

#include "h2o/store/cold/place.h"

#include "h2o/store/codec/codec.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

// A chunk's rows of one layer's K or V.
struct h2o_cold_rows {
    std::shared_ptr<const h2o_cold_bytes> bytes;
    h2o_codec_block block; // without a code: the rows are not encoded
};

// K and V of a chunk, by layer. Threads replace rows by encoded rows: rows that were loaded remain readable.
struct h2o_cold_chunk {
    h2o_cold_chunk(uint32_t first, uint32_t n_rows, size_t n_layers) : first(first), n_rows(n_rows), rows(n_layers) {}

    std::shared_ptr<const h2o_cold_rows> load(size_t layer, int kv) const { return std::atomic_load(&rows[layer][kv]); }

    void store(size_t layer, int kv, h2o_cold_rows r) {
        const auto next = std::make_shared<const h2o_cold_rows>(std::move(r));
        n_bytes += next->bytes->size;
        if (const auto before = std::atomic_exchange(&rows[layer][kv], next)) {
            n_bytes -= before->bytes->size;
        }
    }

    const uint32_t first; // position
    const uint32_t n_rows;

    std::atomic<uint64_t> n_bytes{0};

    std::vector<std::array<std::shared_ptr<const h2o_cold_rows>, 2>> rows; // K, V
};

// Counts of all sequences. A block is a chunk's rows of a layer's K or V.
struct h2o_codec_stats {
    uint64_t n_encoded;       // blocks that became shorter
    uint64_t n_raw;           // that did not
    uint64_t n_failed;        // that could not be encoded or stored; they stay unencoded
    uint64_t bytes_raw[2];    // of the rows of all these, K and V
    uint64_t bytes_stored[2]; // what became of them, K and V
    uint32_t n_waiting;       // chunks that are not encoded yet
};

// The lossless codec of a cold store: threads encode stored rows in the background. One for all sequences of a context.
class h2o_cold_codec {
public:
    struct layer {
        int32_t il;
        std::array<ggml_type, 2> types; // of K, of V
    };

    h2o_cold_codec(uint32_t n_threads, std::shared_ptr<h2o_cold_place> place, std::vector<layer> layers);
    ~h2o_cold_codec();

    // Queues the chunk, which is stored already: it may wait for long.
    void submit(const std::shared_ptr<h2o_cold_chunk> & chunk);

    h2o_codec_stats stats() const;

    const std::vector<layer> layers;

private:
    // One set for a chunk: freed buffers between stored rows would remain as gaps.
    struct buffers {
        std::vector<uint8_t> read, encoded;
    };

    // Code of a layer's K or V, made from one chunk: it is hardly worse for other texts.
    struct code {
        std::shared_ptr<const h2o_codec_code> rows;
        double row_bytes = 0;
    };

    void work();
    void stop();
    void encode(h2o_cold_chunk & chunk, size_t layer, int kv, buffers & b);

    const std::shared_ptr<h2o_cold_place> place;

    mutable std::mutex mutex; // of all that follows
    h2o_codec_stats    counts = {};

    std::vector<std::array<code, 2>> codes;

    // chunks to encode, unless all of their owners have dropped them
    std::deque<std::weak_ptr<h2o_cold_chunk>> queue;
    std::condition_variable  wake;
    bool                     is_done = false;
    std::vector<std::thread> threads;
};
