#pragma once

#include "h2o/store/codec/codec.h"

// Rows that are equal to an earlier one: the V of a model's first layer depends on the token alone.
struct h2o_codec_equal_rows {
    // of each row: itself, or the first row that it is equal to
    std::vector<uint32_t> first;
    uint32_t n_kept = 0; // rows that are themselves
};

h2o_codec_equal_rows h2o_codec_find_equal_rows(const uint8_t * rows, uint32_t n_rows, uint32_t row_bytes);

// As bytes: a bit for each row that is equal to another, lowest bit first; then for each of these its number among those kept, in 2
// bytes, or 4 if more than 65,536 are kept.
size_t h2o_codec_equal_rows_bytes(uint32_t n_rows, uint32_t n_kept);
void   h2o_codec_write_equal_rows(const h2o_codec_equal_rows & rows, uint8_t * out);

// Of each row its number among those kept. Throws h2o_codec_error if there is no such row yet, or not n_kept of them.
std::vector<uint32_t> h2o_codec_read_equal_rows(const uint8_t * data, uint32_t n_rows, uint32_t n_kept);
