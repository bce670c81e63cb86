#pragma once

#include "h2o/store/cold-place.h"

#include "h2o/store/codec/prefetch.h"
#include "h2o/store/codec/row-code.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

// Where the rows of a chunk are, of a layer's K or V.
struct h2o_cold_rows {
    std::shared_ptr<const h2o_cold_block> bytes;

    // NULL: all rows as they are. Else where each of them ends in bytes, and what decodes it.
    std::shared_ptr<const h2o_codec_row_code> code;
    std::vector<uint32_t> ends;

    // what will be read first, and what then, of n rows from the first on
    void prefetch_ends(uint32_t first, uint32_t n) const {
        h2o_codec_prefetch(bytes.get(), sizeof(*bytes));
        if (code) {
            h2o_codec_prefetch(&ends[first > 0 ? first - 1 : 0], (n + 1)*sizeof(ends[0]));
            h2o_codec_prefetch(code.get(), sizeof(*code));
        }
    }

    void prefetch(uint32_t first, uint32_t n, size_t row_size) const {
        const size_t begin = !code ? first*row_size : first > 0 ? ends[first - 1] : 0;
        bytes->prefetch(begin, code ? ends[first + n - 1] - begin : n*row_size);
    }
};

struct h2o_cold_part {
    size_t   layer    = 0; // index
    int      part     = 0; // K, V
    uint32_t first    = 0; // position
    uint32_t n_rows   = 0;
    size_t   row_size = 0; // bytes

    h2o_cold_part() = default;
    h2o_cold_part(size_t layer, int part, uint32_t first, uint32_t n_rows, size_t row_size)
        : layer(layer), part(part), first(first), n_rows(n_rows), row_size(row_size) {}

    // Another thread puts encoded rows in place of these: what is loaded once remains readable.
    std::shared_ptr<const h2o_cold_rows> load() const { return std::atomic_load(&rows); }

    void store(h2o_cold_rows r) { std::atomic_store(&rows, std::make_shared<const h2o_cold_rows>(std::move(r))); }

private:
    std::shared_ptr<const h2o_cold_rows> rows;
};

// K and V of a chunk, by layer.
struct h2o_cold_chunk {
    std::vector<std::array<h2o_cold_part, 2>> parts;

    bool is_submitted = false; // somebody has encoded it, or will
    bool is_refused   = false; // it was not taken at once
};
