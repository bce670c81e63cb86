#include "h2o-cold-store.h"

#include <algorithm>

void h2o_cold_store::append(const std::function<std::vector<uint8_t>(size_t layer, part_t part)> & rows) {
    chunk res(row_sizes.size());
    for (size_t layer = 0; layer < res.size(); ++layer) {
        for (const part_t part : { K, V }) {
            const auto bytes = rows(layer, part);
            res[layer][part] = place->write(bytes.data(), bytes.size());
        }
    }
    chunks.push_back(std::make_shared<const chunk>(std::move(res)));
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
    (*chunks[chunk])[layer][part]->read(0, res.size(), res.data());
    return res;
}

void h2o_cold_store::read(size_t layer, part_t part, const int32_t * positions, size_t n, uint8_t * dst) const {
    // neighbours at once
    for (size_t i = 0; i < n;) {
        size_t end = i + 1;
        while (end < n && positions[end] == positions[end - 1] + 1) {
            end++;
        }
        read_range(layer, part, positions[i], end - i, dst + i*row_sizes[layer][part]);
        i = end;
    }
}

void h2o_cold_store::read_range(size_t layer, part_t part, uint32_t first, size_t n, uint8_t * dst) const {
    const size_t size = row_sizes[layer][part];

    for (size_t i = 0; i < n;) {
        const uint32_t pos = first + i;
        const size_t   k   = std::min<size_t>(n - i, chunk_size - pos%chunk_size);

        (*chunks[pos/chunk_size])[layer][part]->read(pos%chunk_size*size, k*size, dst + i*size);
        i += k;
    }
}

uint64_t h2o_cold_store::n_bytes() const {
    uint64_t res = 0;
    for (const auto & sizes : row_sizes) {
        res += (uint64_t) n_chunks()*chunk_size*(sizes[K] + sizes[V]);
    }
    return res;
}
