#include "h2o-cold-store.h"

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

void h2o_cold_store::read(size_t layer, part_t part, const int32_t * positions, size_t n, uint8_t * dst) const {
    const h2o_codec_stopwatch watch;

    // neighbours at once
    for (size_t i = 0; i < n;) {
        size_t end = i + 1;
        while (end < n && positions[end] == positions[end - 1] + 1) {
            end++;
        }
        read_range(layer, part, positions[i], end - i, dst + i*row_sizes[layer][part]);
        i = end;
    }
    if (codec && codec->params.mode == LLAMA_H2O_LOSSLESS_STORE && n > 0) {
        codec->count_read(watch.us());
    }
}

void h2o_cold_store::read_range(size_t layer, part_t part, uint32_t first, size_t n, uint8_t * dst) const {
    const size_t size = row_sizes[layer][part];

    for (size_t i = 0; i < n;) {
        const uint32_t pos = first + i;
        const size_t   k   = std::min<size_t>(n - i, chunk_size - pos%chunk_size);

        const h2o_cold_part & stored = chunks[pos/chunk_size]->parts[layer][part];

        const auto rows = stored.load();
        if (rows->code) {
            codec->read(stored, *rows, pos%chunk_size, k, dst + i*size);
        } else {
            rows->bytes->read(pos%chunk_size*size, k*size, dst + i*size);
        }
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
