#pragma once

#include "h2o/store/codec/code.h"

#include <functional>
#include <utility>

// Rows that are encoded, but for the bytes of their units, which lie one after another wherever their owner put them.
struct h2o_codec_block {
    std::shared_ptr<const h2o_codec_code> code;

    uint32_t n_rows   = 0;
    uint32_t n_stored = 0; // rows that are not equal to an earlier one: the V of a model's first layer depends on the token alone

    std::vector<uint32_t> numbers; // of each row, among those stored; empty: all are
    std::vector<uint32_t> ends;    // of each unit, in the bytes

    uint32_t begin_of(uint32_t unit) const { return unit > 0 ? ends[unit - 1] : 0; }
    uint32_t unit_of (uint32_t row)  const { return (numbers.empty() ? row : numbers[row])/code->unit_rows; }

    // Where the rows [first, first + n) begin and end; with equal rows, only the first of them. prefetch(first) is before it.
    std::pair<uint32_t, uint32_t> bytes_of(uint32_t first, uint32_t n) const;
    void prefetch(uint32_t first) const;

    // a pointer to bytes [begin, end), used until it is called again
    using reader = std::function<const uint8_t * (uint32_t begin, uint32_t end)>;

    // Rows [first, first + n) to `out`. Throws h2o_codec_error.
    void decode(uint32_t first, uint32_t n, uint8_t * out, const reader & read) const;

    // Throws h2o_codec_error if this is not what h2o_codec_encode() gave with so many bytes.
    void check(size_t n_bytes) const;
};

// Appends the units to `out`, which is empty. code: NULL: one is made, of these rows. may_repeat: equal rows are looked for.
h2o_codec_block h2o_codec_encode(const uint8_t * rows, const h2o_codec_shape & shape, const h2o_codec_options & options,
    std::shared_ptr<const h2o_codec_code> code, bool may_repeat, std::vector<uint8_t> & out);
