#include "h2o/store/cold/codec.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

static constexpr uint32_t PROBE_INTERVAL = 16; // of so many layers' K and V one is encoded to be counted

// The next chunk makes a new code where rows take so much more than those that the last one was made from.
static constexpr double MAX_GROWTH = 1.05;

h2o_cold_codec::h2o_cold_codec(const llama_h2o_lossless_params & params, std::shared_ptr<h2o_cold_place> place, std::vector<layer> layers)
    : params(params), layers(std::move(layers)), place(std::move(place)), codes(this->layers.size()), pool(params.n_threads, params.max_queue) {
}

void h2o_cold_codec::submit(const std::shared_ptr<h2o_cold_chunk> & chunk) {
    const std::weak_ptr<h2o_cold_chunk> weak = chunk;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        counts.n_waiting++;
    }

    // what nobody has any more need not be encoded
    const bool is_taken = pool.submit([this, weak, n_layer = chunk->rows.size()]() {
        buffers b;
        for (size_t i = 0; i < 2*n_layer; ++i) {
            if (const auto alive = weak.lock()) {
                encode(*alive, i/2, i%2, b);
            }
        }
        const std::lock_guard<std::mutex> lock(mutex);
        counts.n_waiting--;
    });

    const std::lock_guard<std::mutex> lock(mutex);
    chunk->is_submitted = is_taken;
    counts.n_waiting -= !is_taken;
    if (!is_taken && !chunk->is_refused) {
        chunk->is_refused = true;
        counts.n_skipped += 2*chunk->rows.size();
    }
}

void h2o_cold_codec::encode(h2o_cold_chunk & chunk, size_t layer, int kv, buffers & b) {
    if (params.mode == LLAMA_H2O_LOSSLESS_PROBE && (chunk.first/chunk.n_rows + 2*layer + kv)%PROBE_INTERVAL != 0) {
        return;
    }
    const auto raw = chunk.load(layer, kv);
    const size_t n_raw = raw->bytes->size;

    float  us       = 0;
    size_t n_stored = n_raw;
    auto   outcome  = &llama_h2o_lossless_stats::n_failed; // no room, or no memory: the rows stay as they are
    try {
        const uint8_t * rows = raw->bytes->get(0, n_raw, b.read);

        const h2o_codec_stopwatch watch;
        h2o_codec_options options;
        options.unit_rows  = 1; // what a token looks up is all that is decoded for it
        options.for_others = true;

        const h2o_codec_shape shape = { layers[layer].types[kv], chunk.n_rows, (uint32_t) (n_raw/chunk.n_rows) };
        code used;
        {
            const std::lock_guard<std::mutex> lock(mutex);
            used = codes[layer][kv];
        }
        b.encoded.clear();
        b.encoded.reserve(n_raw + chunk.n_rows*H2O_CODEC_CHECKSUM_BYTES);
        const h2o_codec_block block = h2o_codec_encode(rows, shape, options, used.tables, used.may_repeat, b.encoded);
        us = watch.us();

        const double row_bytes = b.encoded.size()/(double) block.n_stored;
        if (!used.tables || row_bytes > MAX_GROWTH*used.row_bytes) {
            const std::lock_guard<std::mutex> lock(mutex);
            codes[layer][kv] = used.tables ? code() : code { block.code, !block.numbers.empty(), row_bytes };
        }
        if (params.strict || params.mode == LLAMA_H2O_LOSSLESS_FULL) {
            b.other.resize(n_raw);
            const h2o_codec_stopwatch decoding;
            block.decode(0, chunk.n_rows, b.other.data(), [&b](uint32_t begin, uint32_t /*end*/) { return b.encoded.data() + begin; });
            count_read(decoding.us());
            if (memcmp(b.other.data(), rows, n_raw) != 0) {
                throw std::runtime_error("[h2o] rows came back changed");
            }
        }
        const bool shrinks = b.encoded.size() < n_raw;
        if (shrinks && params.mode == LLAMA_H2O_LOSSLESS_STORE) {
            chunk.store(layer, kv, { place->write(b.encoded), block });
        }
        outcome  = shrinks ? &llama_h2o_lossless_stats::n_encoded : &llama_h2o_lossless_stats::n_raw;
        n_stored = std::min(n_raw, b.encoded.size());
    } catch (const std::exception &) {
    }
    const std::lock_guard<std::mutex> lock(mutex);
    if (outcome != &llama_h2o_lossless_stats::n_failed) {
        encode_times.add(us);
    }
    counts.*outcome += 1;
    counts.bytes_raw   [kv] += n_raw;
    counts.bytes_stored[kv] += n_stored;
}

void h2o_cold_codec::count_read(float us) {
    const std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
    if (lock) { // to wait would take longer than reading
        decode_times.add(us);
    }
}

void h2o_cold_codec::count_kept(uint64_t n_hits, uint64_t n_misses) {
    const std::lock_guard<std::mutex> lock(mutex);
    counts.n_hits   += n_hits;
    counts.n_misses += n_misses;
}

llama_h2o_lossless_stats h2o_cold_codec::stats() const {
    const std::lock_guard<std::mutex> lock(mutex);

    llama_h2o_lossless_stats res = counts;
    res.queue_peak = pool.queue_peak();
    encode_times.percentiles(res.encode_us);
    decode_times.percentiles(res.decode_us);
    return res;
}
