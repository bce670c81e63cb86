#include "h2o/store/cold-store.h"

#include <algorithm>

void h2o_cold_store::append(const std::function<std::vector<uint8_t>(size_t layer, part_t part)> & rows) {
    auto chunk = std::make_shared<h2o_cold_chunk>();
    for (size_t layer = 0; layer < row_sizes.size(); ++layer) {
        chunk->parts.emplace_back();
        for (const part_t part : { K, V }) {
            const auto bytes = rows(layer, part);
            chunk->parts[layer][part] = h2o_cold_part(layer, part, n_chunks()*chunk_size, chunk_size, row_sizes[layer][part]);
            chunk->parts[layer][part].store({ place->write(bytes.data(), bytes.size()), {}, {} });
        }
    }
    chunks.push_back(std::move(chunk));

    if (!codec) {
        return;
    }
    for (const auto & chunk : chunks) {
        if (!chunk->is_submitted) { // this one, or an earlier one for which there was no room
            codec->submit(chunk);
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

std::vector<uint8_t> h2o_cold_store::chunk_rows(uint32_t chunk, size_t layer, part_t part) const {
    std::vector<uint8_t> res(chunk_size*row_sizes[layer][part]);
    read_range(layer, part, chunk*chunk_size, chunk_size, res.data());
    return res;
}

void h2o_cold_store::read(size_t layer, part_t part, const std::vector<wanted> & rows) const {
    const h2o_codec_stopwatch watch;

    std::vector<range> ranges = ranges_of(layer, part, rows);
    for (size_t i = 0; i < ranges.size(); i += AT_ONCE) {
        read(ranges.data() + i, std::min(AT_ONCE, ranges.size() - i));
    }
    if (codec && codec->params.mode == LLAMA_H2O_LOSSLESS_STORE && !rows.empty()) {
        codec->count_read(watch.us());
    }
}

std::vector<h2o_cold_store::range> h2o_cold_store::ranges_of(size_t layer, part_t part, const std::vector<wanted> & rows) const {
    std::vector<range> res;
    res.reserve(rows.size());
    for (const wanted & row : rows) {
        const h2o_cold_part * p = &chunks[row.pos/chunk_size]->parts[layer][part];
        const uint32_t    first = row.pos%chunk_size;
        if (!res.empty()) {
            range & last = res.back();
            if (p == last.part && first == last.first + last.n && row.dst == last.dst + last.n*p->row_size) {
                last.n++;
                continue;
            }
        }
        res.push_back({ p, first, 1, row.dst, nullptr });
    }
    return res;
}

// All that is needed of a range lies somewhere else in memory, and so do the other ranges. To wait for one after another would take longer
// than all else here.
void h2o_cold_store::read(range * ranges, size_t n) const {
    for (size_t i = 0; i < n; ++i) {
        h2o_codec_prefetch(ranges[i].part, sizeof(*ranges[i].part));
    }
    for (size_t i = 0; i < n; ++i) {
        ranges[i].stored = ranges[i].part->load();
        ranges[i].stored->prefetch_ends(ranges[i].first, ranges[i].n);
    }
    const h2o_codec_row_code * code = nullptr; // most have the same
    for (size_t i = 0; i < n; ++i) {
        const h2o_cold_rows & stored = *ranges[i].stored;
        stored.prefetch(ranges[i].first, ranges[i].n, ranges[i].part->row_size);
        if (stored.code && stored.code.get() != code) {
            code = stored.code.get();
            code->prefetch();
        }
    }
    for (size_t i = 0; i < n; ++i) {
        read(ranges[i]);
    }
}

void h2o_cold_store::read(const range & r) const {
    if (r.stored->code) {
        codec->read(*r.part, *r.stored, r.first, r.n, r.dst);
    } else {
        r.stored->bytes->read(r.first*r.part->row_size, r.n*r.part->row_size, r.dst);
    }
}

void h2o_cold_store::read_range(size_t layer, part_t part, uint32_t first, size_t n, uint8_t * dst) const {
    const size_t size = row_sizes[layer][part];

    for (size_t i = 0; i < n;) {
        const uint32_t pos = first + i;
        const uint32_t k   = std::min<size_t>(n - i, chunk_size - pos%chunk_size);

        const h2o_cold_part & p = chunks[pos/chunk_size]->parts[layer][part];
        read({ &p, pos%chunk_size, k, dst + i*size, p.load() });
        i += k;
    }
}

uint64_t h2o_cold_store::n_bytes() const {
    uint64_t res = 0;
    if (!codec) { // asked for with every token that a server sends
        for (const auto & sizes : row_sizes) {
            res += (uint64_t) n_chunks()*chunk_size*(sizes[K] + sizes[V]);
        }
        return res;
    }
    for (const auto & chunk : chunks) {
        for (const auto & parts : chunk->parts) {
            for (const auto & part : parts) {
                res += part.load()->bytes->size;
            }
        }
    }
    return res;
}
