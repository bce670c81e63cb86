#include "h2o/store/cold/store.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <utility>

void h2o_cold_store::append(const std::function<std::vector<uint8_t>(size_t layer, h2o_kv_part part)> & rows) {
    const auto chunk = std::make_shared<h2o_cold_chunk>(n_chunks()*chunk_size, chunk_size, row_sizes.size());
    for (size_t layer = 0; layer < row_sizes.size(); ++layer) {
        for (const h2o_kv_part part : { H2O_K, H2O_V }) {
            chunk->store(layer, part, { place->write(rows(layer, part)), {} });
        }
    }
    chunks.push_back(chunk);
    if (codec) {
        codec->submit(chunk);
    }
}

void h2o_cold_store::truncate(uint32_t n) {
    chunks.resize(std::min<size_t>(n, chunks.size()));
}

void h2o_cold_store::share(const h2o_cold_store & other) {
    chunks = other.chunks;
}

void h2o_cold_store::read(size_t layer, h2o_kv_part part, const std::vector<wanted> & rows) const {
    const size_t size = row_sizes[layer][part];

    static thread_local std::vector<uint8_t> buffer; // kept, as most reads are of one row
    for (size_t i = 0, n; i < rows.size(); i += n) {
        const auto &   chunk  = *chunks[rows[i].pos/chunk_size];
        const uint32_t first  = rows[i].pos%chunk_size;
        const auto     stored = chunk.load(layer, part);

        // as many as lie together, here and there
        n = 1;
        while (i + n < rows.size() && first + n < chunk_size && rows[i + n].pos == rows[i].pos + (int32_t) n &&
                rows[i + n].dst == rows[i].dst + n*size) {
            n++;
        }
        if (!stored->block.code) {
            std::copy_n(stored->bytes->get(first*size, n*size, buffer), n*size, rows[i].dst);
            continue;
        }
        try {
            stored->block.decode(first, n, rows[i].dst, [&](uint32_t begin, uint32_t end) {
                return stored->bytes->get(begin, end - begin, buffer);
            });
        } catch (const h2o_codec_error & e) {
            throw std::runtime_error("[h2o] the cold store is damaged: layer " +
                    std::to_string(codec->layers[layer].il) + ", " + (part == H2O_K ? "K" : "V") + " of positions " +
                    std::to_string(rows[i].pos) + " to " + std::to_string(rows[i].pos + n - 1) + " (" + e.what() +
                    "). Reset the sequence and read its text again");
        }
    }
}

void h2o_cold_store::read_range(size_t layer, h2o_kv_part part, uint32_t first, size_t n, uint8_t * dst) const {
    std::vector<wanted> rows;
    for (size_t i = 0; i < n; ++i) {
        rows.push_back({ (int32_t) (first + i), dst + i*row_sizes[layer][part] });
    }
    read(layer, part, rows);
}

void h2o_cold_store::read_lists(size_t layer, h2o_kv_part part, const h2o_cold_lists & lists, uint32_t begin,
        uint32_t end, uint8_t * dst) const {
    constexpr uint32_t PIECE = 256; // positions that are read at a time: a row serves all heads and lists

    const auto * pos   = (const uint32_t *) lists.pos; // -1 is the last one
    const size_t size  = row_sizes[layer][part];
    const size_t head  = size/lists.n_head;
    const size_t n_all = lists.n_head*lists.n_each();

    std::vector<size_t> next; // each list's first entry that was not read
    for (size_t i = 0; i < n_all; i += lists.n) {
        next.push_back(std::lower_bound(pos + i, pos + i + lists.n, begin) - pos);
    }
    std::vector<uint8_t> buffer(PIECE*size);
    for (uint32_t first = begin; first < end; first += PIECE) {
        const uint32_t stop = std::min(first + PIECE, end);

        std::vector<size_t>     entries;
        std::array<bool, PIECE> is_wanted = {};
        for (size_t list = 0; list < next.size(); ++list) {
            for (size_t & i = next[list]; i < (list + 1)*lists.n && pos[i] < stop; ++i) {
                entries.push_back(i);
                is_wanted[pos[i] - first] = true;
            }
        }
        std::vector<wanted> rows;
        for (uint32_t i = 0; i < PIECE; ++i) {
            if (is_wanted[i]) {
                rows.push_back({ (int32_t) (first + i), &buffer[i*size] });
            }
        }
        read(layer, part, rows);
        for (const size_t i : entries) {
            const size_t h = i/lists.n_each()*head;
            std::copy_n(&buffer[(pos[i] - first)*size + h], head, dst + lists.row_of(i)*size + h);
        }
    }
}

void h2o_cold_store::keep_failure(const std::string & what) {
    const std::lock_guard<std::mutex> lock(mutex);
    failure = what;
}

void h2o_cold_store::check() {
    if (!failure.empty()) {
        throw std::runtime_error(std::exchange(failure, std::string()));
    }
}

uint64_t h2o_cold_store::n_bytes() const {
    uint64_t res = 0;
    for (const auto & chunk : chunks) {
        res += chunk->n_bytes;
    }
    return res;
}
