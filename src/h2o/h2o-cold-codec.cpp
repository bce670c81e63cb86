#include "h2o-cold-codec.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <stdexcept>

namespace {

constexpr uint32_t PROBE_INTERVAL = 16; // of so many blocks one is encoded to be counted

class stopwatch {
public:
    float us() const { return std::chrono::duration<float, std::micro>(std::chrono::steady_clock::now() - start).count(); }

private:
    const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

h2o_codec_entropy entropy_of(llama_h2o_codec codec) {
    switch (codec) {
        case LLAMA_H2O_CODEC_ZSTD: return H2O_CODEC_ENTROPY_ZSTD;
        case LLAMA_H2O_CODEC_LZ4:  return H2O_CODEC_ENTROPY_LZ4;
        case LLAMA_H2O_CODEC_RLE:  return H2O_CODEC_ENTROPY_RLE;
        case LLAMA_H2O_CODEC_AUTO: break;
    }
    return H2O_CODEC_ENTROPY_AUTO;
}

} // namespace

h2o_cold_codec::h2o_cold_codec(const llama_h2o_lossless_params & params, std::shared_ptr<h2o_cold_place> place, std::vector<layer> layers)
    : params(params), place(std::move(place)), layers(std::move(layers)), cache(params.cache_bytes/4), pool(params.n_threads, params.max_queue) {
}

uint32_t h2o_cold_codec::n_rows_of(const h2o_cold_part & part, uint32_t block) const {
    return std::min(params.block_tokens, part.n_rows - block*params.block_tokens);
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
        for (const auto & part : chunk->parts[0]) {
            counts.n_skipped += chunk->parts.size()*((part.n_rows + params.block_tokens - 1)/params.block_tokens);
        }
    }
}

void h2o_cold_codec::encode(h2o_cold_part & part, buffers & b) {
    const h2o_codec_type type = layers[part.layer].types[part.part];

    h2o_codec_options options;
    options.entropy = entropy_of(params.codec);

    llama_h2o_lossless_stats found = {};

    uint64_t & n_raw    = found.bytes_raw   [part.part];
    uint64_t & n_stored = found.bytes_stored[part.part];

    h2o_cold_rows stored;
    try {
        b.rows.resize(part.n_rows*part.row_size);
        b.frames.clear();
        b.frames.reserve(b.rows.size());
        part.load()->bytes->read(0, b.rows.size(), b.rows.data());

        for (uint32_t i = 0; i*params.block_tokens < part.n_rows; ++i) {
            if (params.mode == LLAMA_H2O_LOSSLESS_PROBE && (part.first/part.n_rows + 2*part.layer + part.part + i)%PROBE_INTERVAL != 0) {
                continue;
            }
            const uint8_t * block = b.rows.data() + i*params.block_tokens*part.row_size;

            const h2o_codec_shape shape = { type, n_rows_of(part, i), (uint32_t) part.row_size };

            const stopwatch watch;
            std::vector<uint8_t> frame = h2o_codec_encode(block, shape, options);
            const float encode_us = watch.us();

            bool is_right = true;
            if (params.strict || params.mode == LLAMA_H2O_LOSSLESS_FULL) {
                b.copy.resize(shape.bytes());

                const stopwatch watch;
                h2o_codec_decode(frame.data(), frame.size(), b.copy.data(), b.copy.size());
                const float decode_us = watch.us();

                is_right = memcmp(b.copy.data(), block, b.copy.size()) == 0;

                const std::lock_guard<std::mutex> lock(mutex);
                decode_times.add(decode_us);
            }
            const bool shrinks = frame.size() < shape.bytes();

            found.n_encoded += is_right && shrinks;
            found.n_raw     += is_right && !shrinks;
            found.n_failed  += !is_right;
            if (!is_right || !shrinks) {
                frame.assign(block, block + shape.bytes());
            }
            n_raw    += shape.bytes();
            n_stored += frame.size();
            b.frames.insert(b.frames.end(), frame.begin(), frame.end());
            stored.ends.push_back(b.frames.size());

            const std::lock_guard<std::mutex> lock(mutex);
            encode_times.add(encode_us);
        }
        if (params.mode == LLAMA_H2O_LOSSLESS_STORE && found.n_encoded > 0) {
            stored.bytes = place->write(b.frames.data(), b.frames.size());
            part.store(std::move(stored));
        }
    } catch (const std::exception &) { // no room, or no memory: the rows stay as they are
        found = {};
        found.n_failed = (part.n_rows + params.block_tokens - 1)/params.block_tokens;
        n_raw    = part.n_rows*part.row_size;
        n_stored = n_raw;
    }

    const std::lock_guard<std::mutex> lock(mutex);
    counts.n_encoded += found.n_encoded;
    counts.n_raw     += found.n_raw;
    counts.n_failed  += found.n_failed;
    counts.bytes_raw   [part.part] += n_raw;
    counts.bytes_stored[part.part] += n_stored;
}

void h2o_cold_codec::read(const h2o_cold_part & part, const h2o_cold_rows & rows, uint32_t first, uint32_t n, uint8_t * dst, held & last) {
    for (uint32_t i = first; i < first + n;) {
        const uint32_t block = i/params.block_tokens;
        const uint32_t start = block*params.block_tokens;
        const uint32_t end   = std::min(first + n, start + n_rows_of(part, block));

        const h2o_block_cache::key key = { part.id, block };

        const bool is_whole = i == start && end - start == n_rows_of(part, block);
        if (last.first != key || !last.second) {
            // who reads all rows comes back last of all: what others will look up stays in the cache
            last = { key, is_whole ? cache.find(key) : load(part, rows, block) };
        }
        if (last.second) {
            memcpy(dst, last.second->data() + (i - start)*part.row_size, (end - i)*part.row_size);
        } else {
            decode(part, rows, block, dst);
        }
        dst += (end - i)*part.row_size;
        i = end;
    }
}

h2o_block_cache::bytes h2o_cold_codec::load(const h2o_cold_part & part, const h2o_cold_rows & rows, uint32_t block) {
    return cache.get({ part.id, block }, n_rows_of(part, block)*part.row_size, [&](uint8_t * dst) { decode(part, rows, block, dst); });
}

void h2o_cold_codec::decode(const h2o_cold_part & part, const h2o_cold_rows & rows, uint32_t block, uint8_t * dst) {
    const stopwatch watch;

    const size_t begin   = block == 0 ? 0 : rows.ends[block - 1];
    const size_t n_bytes = rows.ends[block] - begin;
    const size_t n_raw   = n_rows_of(part, block)*part.row_size;

    if (n_bytes == n_raw) {
        rows.bytes->read(begin, n_bytes, dst);
        return;
    }
    std::vector<uint8_t> frame(n_bytes);
    rows.bytes->read(begin, n_bytes, frame.data());
    try {
        h2o_codec_decode(frame.data(), frame.size(), dst, n_raw);
    } catch (const h2o_codec_error & e) {
        const uint32_t first = part.first + block*params.block_tokens;
        throw std::runtime_error("[h2o] the cold store is damaged: layer " + std::to_string(layers[part.layer].il) + ", " + (part.part == 0 ? "K" : "V") +
                " of positions " + std::to_string(first) + " to " + std::to_string(first + n_rows_of(part, block) - 1) +
                " (" + e.what() + "). Reset the sequence and read its text again");
    }
    const std::lock_guard<std::mutex> lock(mutex);
    decode_times.add(watch.us());
}

void h2o_cold_codec::decode_ahead(std::vector<blocks> blocks, progress p) {
    // where threads are busy, what reads the rows decodes them
    if (params.mode != LLAMA_H2O_LOSSLESS_STORE || blocks.empty() || cache.capacity == 0 || pool.queue_length() > 0) {
        return;
    }
    const auto shared = std::make_shared<const std::vector<h2o_cold_codec::blocks>>(std::move(blocks));

    for (uint32_t ith = 0; ith < params.n_threads; ++ith) {
        pool.submit(H2O_CODEC_WORK_DECODE, [this, shared, p, ith]() {
            uint64_t n_room = cache.capacity/2/params.n_threads;

            for (size_t il = 0; il < layers.size(); ++il) {
                for (const auto & some : *shared) {
                    for (const auto & part : some.chunk->parts[il]) {
                        const auto rows = part.load();
                        for (size_t i = ith; i < some.numbers.size() && !rows->ends.empty() && il >= *p; i += params.n_threads) {
                            const uint32_t block = some.numbers[i];
                            const size_t   n     = n_rows_of(part, block)*part.row_size;
                            if (n > n_room) {
                                return true;
                            }
                            n_room -= n;
                            try {
                                cache.load_ahead({ part.id, block }, n, [&](uint8_t * dst) { decode(part, *rows, block, dst); });
                            } catch (const std::exception &) {
                                return true; // who reads the block will be told
                            }
                        }
                    }
                }
            }
            return true;
        });
    }
}

llama_h2o_lossless_stats h2o_cold_codec::stats() const {
    const std::lock_guard<std::mutex> lock(mutex);

    llama_h2o_lossless_stats res = counts;
    res.queue_peak = pool.queue_peak();

    const auto cached = cache.stats();
    res.n_hits      = cached.n_hits;
    res.n_misses    = cached.n_misses;
    res.n_ahead     = cached.n_ahead;
    res.n_used      = cached.n_used;
    res.bytes_cache = cached.n_bytes;

    const auto encode = encode_times.percentiles();
    const auto decode = decode_times.percentiles();
    const double times[2][3] = { { encode.p50, encode.p95, encode.p99 }, { decode.p50, decode.p95, decode.p99 } };
    std::copy_n(times[0], 3, res.encode_us);
    std::copy_n(times[1], 3, res.decode_us);
    return res;
}
