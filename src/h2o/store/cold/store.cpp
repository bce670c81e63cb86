#include "h2o/store/cold/store.h"

#include <algorithm>
#include <stdexcept>
#include <string>

void h2o_cold_store::append(const std::function<std::vector<uint8_t>(size_t layer, h2o_kv_part part)> & rows) {
    const auto chunk = std::make_shared<h2o_cold_chunk>(n_chunks()*chunk_size, chunk_size, row_sizes.size());
    for (size_t layer = 0; layer < row_sizes.size(); ++layer) {
        for (const h2o_kv_part part : { H2O_K, H2O_V }) {
            chunk->store(layer, part, { place->write(rows(layer, part)), {} });
        }
    }
    chunks.push_back(chunk);

    for (const auto & c : chunks) {
        if (codec && !c->is_submitted) { // this chunk, or an earlier one that found the queue full
            codec->submit(c);
        }
    }
}

void h2o_cold_store::truncate(uint32_t n) {
    if (n < chunks.size()) {
        chunks.resize(n);
        n_changes++;
    }
}

void h2o_cold_store::share(const h2o_cold_store & other) {
    chunks = other.chunks;
    n_changes++;
}

std::vector<uint8_t> h2o_cold_store::chunk_rows(uint32_t chunk, size_t layer, h2o_kv_part part) const {
    std::vector<uint8_t> res(chunk_size*row_sizes[layer][part]);
    read_range(layer, part, chunk*chunk_size, chunk_size, res.data());
    return res;
}

void h2o_cold_store::read(size_t layer, h2o_kv_part part, const std::vector<wanted> & rows) const {
    constexpr size_t AT_ONCE = 64; // their rows fit into a core's cache

    const h2o_stopwatch watch;
    const size_t size = row_sizes[layer][part];

    std::vector<range> ranges;
    for (const wanted & row : rows) {
        const h2o_cold_chunk * chunk = chunks[row.pos/chunk_size].get();
        const uint32_t         first = row.pos%chunk_size;
        if (!ranges.empty()) {
            range & last = ranges.back();
            if (chunk == last.chunk && first == last.first + last.n && row.dst == last.dst + last.n*size) {
                last.n++;
                continue;
            }
        }
        ranges.push_back({ chunk, first, 1, row.dst, nullptr });
    }
    for (size_t i = 0; i < ranges.size(); i += AT_ONCE) {
        read_ranges(layer, part, ranges.data() + i, std::min(AT_ONCE, ranges.size() - i));
    }
    if (codec && codec->params.mode == LLAMA_H2O_LOSSLESS_STORE && !rows.empty()) {
        codec->count_read(watch.us());
    }
}

void h2o_cold_store::read_range(size_t layer, h2o_kv_part part, uint32_t first, size_t n, uint8_t * dst) const {
    for (size_t i = 0; i < n; ) {
        const uint32_t pos = first + i;
        const uint32_t k   = std::min<size_t>(n - i, chunk_size - pos%chunk_size);

        range r = { chunks[pos/chunk_size].get(), pos%chunk_size, k, dst + i*row_sizes[layer][part], nullptr };
        read_ranges(layer, part, &r, 1);
        i += k;
    }
}

// Ranges are scattered in memory, and so are the objects that lead to one. Waiting for each would take longer than all
// else here: they are prefetched together.
void h2o_cold_store::read_ranges(size_t layer, h2o_kv_part part, range * ranges, size_t n) const {
    const size_t size = row_sizes[layer][part];

    for (range * r = ranges; r < ranges + n; ++r) {
        h2o_prefetch(&r->chunk->rows[layer][part], sizeof(r->stored));
    }
    for (range * r = ranges; r < ranges + n; ++r) {
        r->stored = r->chunk->load(layer, part);
        h2o_prefetch(r->stored->bytes.get(), sizeof(h2o_cold_bytes));
    }
    for (range * r = ranges; r < ranges + n; ++r) {
        const h2o_codec_block & block = r->stored->block;
        if (!block.code) {
            r->stored->bytes->prefetch(r->first*size, r->n*size);
            continue;
        }
        const uint32_t unit = block.unit_of(r->first);
        r->stored->bytes->prefetch(block.begin_of(unit), block.ends[unit] - block.begin_of(unit));
    }

    static thread_local std::vector<uint8_t> buffer; // kept, as most reads are of one row
    for (range * r = ranges; r < ranges + n; ++r) {
        const h2o_cold_bytes & bytes = *r->stored->bytes;
        if (!r->stored->block.code) {
            std::copy_n(bytes.get(r->first*size, r->n*size, buffer), r->n*size, r->dst);
            continue;
        }
        try {
            r->stored->block.decode(r->first, r->n, r->dst,
                    [&bytes](uint32_t begin, uint32_t end) { return bytes.get(begin, end - begin, buffer); });
        } catch (const h2o_codec_error & e) {
            const uint32_t first = r->chunk->first + r->first;
            throw std::runtime_error("[h2o] the cold store is damaged: layer " +
                    std::to_string(codec->layers[layer].il) + ", " +
                    (part == H2O_K ? "K" : "V") + " of positions " + std::to_string(first) + " to " +
                            std::to_string(first + r->n - 1) +
                    " (" + e.what() + "). Reset the sequence and read its text again");
        }
    }
}

uint64_t h2o_cold_store::n_bytes() const {
    uint64_t res = 0;
    for (const auto & chunk : chunks) {
        res += chunk->n_bytes;
    }
    return res;
}
