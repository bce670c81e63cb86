#include "h2o/store/cold/codec.h"

#include <algorithm>
#include <utility>

// The next chunk makes a new code if rows take this much more than the rows that the last code was made from.
static constexpr double MAX_GROWTH = 1.05;

// Bytes of rows that are decoded together, at least one row. Fewer bytes take more memory, more take longer.
static constexpr size_t UNIT_BYTES = 768;

h2o_cold_codec::h2o_cold_codec(uint32_t n_threads, std::shared_ptr<h2o_cold_place> place, std::vector<layer> layers)
    : layers(std::move(layers)), place(std::move(place)), codes(this->layers.size()) {
    try {
        for (uint32_t i = 0; i < n_threads; ++i) {
            threads.emplace_back([this] { work(); });
        }
    } catch (...) {
        stop(); // no destructor is called
        throw;
    }
}

h2o_cold_codec::~h2o_cold_codec() {
    stop();
}

void h2o_cold_codec::stop() {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        is_done = true;
    }
    wake.notify_all();
    for (std::thread & thread : threads) {
        thread.join();
    }
}

void h2o_cold_codec::submit(const std::shared_ptr<h2o_cold_chunk> & chunk) {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        queue.push_back(chunk);
        counts.n_waiting++;
    }
    wake.notify_one();
}

// Ends when all is done that was taken.
void h2o_cold_codec::work() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
        wake.wait(lock, [this] { return is_done || !queue.empty(); });
        if (queue.empty()) {
            return;
        }
        const std::weak_ptr<h2o_cold_chunk> chunk = std::move(queue.front());
        queue.pop_front();
        lock.unlock();
        buffers b;
        for (size_t i = 0; i < 2*layers.size(); ++i) {
            if (const auto alive = chunk.lock()) {
                encode(*alive, i/2, i%2, b);
            }
        }
        lock.lock();
        counts.n_waiting--;
    }
}

void h2o_cold_codec::encode(h2o_cold_chunk & chunk, size_t layer, int kv, buffers & b) {
    const auto raw = chunk.load(layer, kv);
    const size_t n_raw = raw->bytes->size;

    size_t n_stored = n_raw;
    auto   outcome  = &h2o_codec_stats::n_failed; // no room, or no memory: the rows stay unencoded
    try {
        const uint8_t * rows = raw->bytes->get(0, n_raw, b.read);

        code used;
        {
            const std::lock_guard<std::mutex> lock(mutex);
            used = codes[layer][kv];
        }
        const bool is_new = !used.rows;
        if (is_new) {
            const uint32_t row_bytes = n_raw/chunk.n_rows;
            used.rows = std::make_shared<const h2o_codec_code>(rows, chunk.n_rows, layers[layer].types[kv], row_bytes,
                    std::max<uint32_t>(1, UNIT_BYTES/row_bytes));
        }
        b.encoded.clear();
        b.encoded.reserve(n_raw);
        const h2o_codec_block block = h2o_codec_encode(rows, chunk.n_rows, used.rows, b.encoded);

        const double row_bytes = b.encoded.size()/(double) chunk.n_rows;
        if (is_new || row_bytes > MAX_GROWTH*used.row_bytes) {
            const std::lock_guard<std::mutex> lock(mutex);
            codes[layer][kv] = is_new ? code { used.rows, row_bytes } : code();
        }
        const bool shrinks = b.encoded.size() < n_raw;
        if (shrinks) {
            chunk.store(layer, kv, { place->write(b.encoded), block });
        }
        outcome  = shrinks ? &h2o_codec_stats::n_encoded : &h2o_codec_stats::n_raw;
        n_stored = std::min(n_raw, b.encoded.size());
    } catch (const std::exception &) {
    }
    const std::lock_guard<std::mutex> lock(mutex);
    counts.*outcome += 1;
    counts.bytes_raw   [kv] += n_raw;
    counts.bytes_stored[kv] += n_stored;
}

h2o_codec_stats h2o_cold_codec::stats() const {
    const std::lock_guard<std::mutex> lock(mutex);
    return counts;
}
