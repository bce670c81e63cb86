#include "h2o/store/codec/rows.h"

#include "h2o/store/codec/entropy.h"

#include <cstring>
#include <unordered_map>

h2o_codec_equal_rows h2o_codec_find_equal_rows(const uint8_t * rows, uint32_t n_rows, uint32_t row_bytes) {
    h2o_codec_equal_rows res;
    res.first.resize(n_rows);

    std::unordered_map<uint64_t, uint32_t> seen;
    seen.reserve(n_rows);
    for (uint32_t r = 0; r < n_rows; ++r) {
        const uint8_t * row = rows + (size_t) r*row_bytes;
        const uint32_t  old = seen.emplace(h2o_codec_hash(row, row_bytes, 0), r).first->second;
        // other rows may have the same hash: only the first of them is found again
        const bool is_equal = old != r && std::memcmp(rows + (size_t) old*row_bytes, row, row_bytes) == 0;
        res.first[r] = is_equal ? old : r;
        res.n_kept  += !is_equal;
    }
    return res;
}

static size_t index_bytes(uint32_t n_kept) {
    return n_kept > 65536 ? 4 : 2;
}

size_t h2o_codec_equal_rows_bytes(uint32_t n_rows, uint32_t n_kept) {
    return ((size_t) n_rows + 7)/8 + (size_t) (n_rows - n_kept)*index_bytes(n_kept);
}

void h2o_codec_write_equal_rows(const h2o_codec_equal_rows & rows, uint8_t * out) {
    const size_t n_rows  = rows.first.size();
    const size_t n_index = index_bytes(rows.n_kept);
    std::vector<uint32_t> number(n_rows);
    std::memset(out, 0, (n_rows + 7)/8);

    uint8_t * index = out + (n_rows + 7)/8;
    uint32_t  n     = 0;
    for (size_t r = 0; r < n_rows; ++r) {
        if (rows.first[r] == r) {
            number[r] = n++;
            continue;
        }
        out[r/8] |= 1 << r%8;
        for (size_t i = 0; i < n_index; ++i) {
            *index++ = number[rows.first[r]] >> 8*i;
        }
    }
}

std::vector<uint32_t> h2o_codec_read_equal_rows(const uint8_t * data, uint32_t n_rows, uint32_t n_kept) {
    const size_t n_index = index_bytes(n_kept);
    const size_t n_bytes = h2o_codec_equal_rows_bytes(n_rows, n_kept);
    std::vector<uint32_t> res(n_rows);

    size_t   at = ((size_t) n_rows + 7)/8;
    uint32_t n  = 0;
    for (uint32_t r = 0; r < n_rows; ++r) {
        uint32_t number = n;
        if (data[r/8] >> r%8 & 1) {
            if (at + n_index > n_bytes) {
                throw h2o_codec_error("[codec] the frame is damaged: more rows are equal to others than it says");
            }
            number = 0;
            for (size_t i = 0; i < n_index; ++i) {
                number |= (uint32_t) data[at++] << 8*i;
            }
            if (number >= n) {
                throw h2o_codec_error("[codec] the frame is damaged: a row is equal to a later one");
            }
        } else {
            n++;
        }
        res[r] = number;
    }
    if (n != n_kept) {
        throw h2o_codec_error("[codec] the frame is damaged: fewer rows are equal to others than it says");
    }
    return res;
}
