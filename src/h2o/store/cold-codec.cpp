#include "h2o/store/cold-codec.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace {

constexpr uint32_t PROBE_INTERVAL = 16; // of so many layers' K and V one is encoded to be counted

// A code is made anew where rows take so much more with it than those that it was made from.
constexpr double MAX_GROWTH = 1.05;

} // namespace

h2o_cold_codec::h2o_cold_codec(const llama_h2o_lossless_params & params, std::shared_ptr<h2o_cold_place> place, std::vector<layer> layers)
    : params(params), place(std::move(place)), layers(std::move(layers)), codes(this->layers.size()), pool(params.n_threads, params.max_queue) {
}

void h2o_cold_codec::submit(const std::shared_ptr<h2o_cold_chunk> & chunk) {
    const std::weak_ptr<h2o_cold_chunk> weak = chunk;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        counts.n_waiting++;
    }

    // what nobody has any more need not be encoded
    const auto task = pool.submit(H2O_CODEC_WORK_ENCODE, [this, weak, n_layer = chunk->parts.size()]() {
        buffers b;
        for (size_t il = 0; il < n_layer; ++il) {
            for (int part = 0; part < 2; ++part) {
                if (const auto alive = weak.lock()) {
                    encode(alive->parts[il][part], b);
                }
            }
        }
        const std::lock_guard<std::mutex> lock(mutex);
        counts.n_waiting--;
        return true;
    });

    const std::lock_guard<std::mutex> lock(mutex);
    chunk->is_submitted = task.has_value();
    counts.n_waiting -= !chunk->is_submitted;
    if (!chunk->is_submitted && !chunk->is_refused) {
        chunk->is_refused = true;
        counts.n_skipped += 2*chunk->parts.size();
    }
}

void h2o_cold_codec::encode(h2o_cold_part & part, buffers & b) {
    if (params.mode == LLAMA_H2O_LOSSLESS_PROBE && (part.first/part.n_rows + 2*part.layer + part.part)%PROBE_INTERVAL != 0) {
        return;
    }
    const size_t n_raw = part.n_rows*part.row_size;

    float  us       = 0;
    size_t n_stored = n_raw;
    auto   outcome  = &llama_h2o_lossless_stats::n_failed; // no room, or no memory: the rows stay as they are
    try {
        b.rows.resize(n_raw);
        part.load()->bytes->read(0, n_raw, b.rows.data());

        const h2o_codec_stopwatch watch;
        h2o_cold_rows stored = encode_rows(part, b);
        us = watch.us();

        if ((params.strict || params.mode == LLAMA_H2O_LOSSLESS_FULL) && !comes_back(stored, b)) {
            throw std::runtime_error("[h2o] rows came back changed");
        }
        const bool shrinks = b.encoded.size() < n_raw;
        if (shrinks && params.mode == LLAMA_H2O_LOSSLESS_STORE) {
            stored.bytes = place->write(b.encoded.data(), b.encoded.size());
            part.store(std::move(stored));
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
    counts.bytes_raw   [part.part] += n_raw;
    counts.bytes_stored[part.part] += n_stored;
}

bool h2o_cold_codec::comes_back(const h2o_cold_rows & stored, buffers & b) {
    const size_t n = b.encoded.size();
    b.encoded.resize(n + h2o_codec_row_code::READ_AHEAD);
    b.other.resize(b.rows.size());

    const h2o_codec_stopwatch watch;
    stored.code->decode(b.encoded.data(), stored.ends.data(), 0, stored.ends.size(), b.other.data());
    count_read(watch.us());

    b.encoded.resize(n);
    return b.other == b.rows;
}

h2o_cold_rows h2o_cold_codec::encode_rows(const h2o_cold_part & part, buffers & b) {
    const h2o_codec_shape shape = { layers[part.layer].types[part.part], part.n_rows, (uint32_t) part.row_size };

    const auto make = [&]() { return std::make_shared<const h2o_codec_row_code>(b.rows.data(), shape); };
    const auto by   = [&](code c, std::vector<uint8_t> & out) {
        h2o_cold_rows res;
        out.clear();
        out.reserve(b.rows.size());
        c->encode(b.rows.data(), part.n_rows, out, res.ends);
        res.code = std::move(c);
        return res;
    };

    code latest;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        latest = codes[part.layer][part.part];
    }
    h2o_cold_rows res = by(latest ? latest : make(), b.encoded);
    if (latest && b.encoded.size() > MAX_GROWTH*latest->expected_bytes(part.n_rows)) {
        h2o_cold_rows other = by(make(), b.other);
        if (b.other.size() + other.code->n_bytes() < b.encoded.size()) {
            std::swap(b.encoded, b.other);
            res = std::move(other);
        }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    codes[part.layer][part.part] = res.code;
    return res;
}

void h2o_cold_codec::read(const h2o_cold_part & part, const h2o_cold_rows & rows, uint32_t first, uint32_t n, uint8_t * dst) const {
    const uint32_t begin = first == 0 ? 0 : rows.ends[first - 1];
    const uint32_t size  = rows.ends[first + n - 1] - begin;

    static thread_local std::vector<uint8_t> bytes; // kept, as most reads are of one row
    bytes.resize(std::max(bytes.size(), size + h2o_codec_row_code::READ_AHEAD));
    rows.bytes->read(begin, size, bytes.data());
    try {
        rows.code->decode(bytes.data(), rows.ends.data(), first, n, dst);
    } catch (const h2o_codec_error & e) {
        throw std::runtime_error("[h2o] the cold store is damaged: layer " + std::to_string(layers[part.layer].il) + ", " + (part.part == 0 ? "K" : "V") +
                " of positions " + std::to_string(part.first + first) + " to " + std::to_string(part.first + first + n - 1) +
                " (" + e.what() + "). Reset the sequence and read its text again");
    }
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

    const auto encode = encode_times.percentiles();
    const auto decode = decode_times.percentiles();
    const double times[2][3] = { { encode.p50, encode.p95, encode.p99 }, { decode.p50, decode.p95, decode.p99 } };
    std::copy_n(times[0], 3, res.encode_us);
    std::copy_n(times[1], 3, res.decode_us);
    return res;
}
