#pragma once

#include "h2o/store/codec/codec.h"

// Bytes at the same place of every ggml block of a row belong together: the high and low bytes of F16, the scales and quants of Q8_0.
// A plane is [n_rows][width()] bytes.
struct h2o_codec_plane {
    uint32_t offset;  // in a ggml block
    uint32_t n_bytes; // of each

    uint32_t width(uint32_t row_bytes, uint32_t block_bytes) const { return row_bytes/block_bytes*n_bytes; }
};

const std::vector<h2o_codec_plane> & h2o_codec_planes_of(h2o_codec_type type);

constexpr size_t H2O_CODEC_MAX_PLANES = 6; // of a type: Q5_1

// Bytes of a ggml block of this type, of which rows have a whole number.
uint32_t h2o_codec_block_bytes(h2o_codec_type type);

// ggml blocks that follow each other to planes that follow each other, in the order of h2o_codec_planes_of.
void h2o_codec_split(h2o_codec_type type, const uint8_t * blocks, uint64_t n_blocks, uint8_t * planes);

// And back, of planes anywhere.
void h2o_codec_merge(h2o_codec_type type, const uint8_t * const * planes, uint64_t n_blocks, uint8_t * blocks);

// In place, on a plane [n_rows][width]; the row before the first one is zeros.
void h2o_codec_predict  (h2o_codec_predictor predictor, uint8_t * plane, uint32_t n_rows, uint32_t width);
void h2o_codec_unpredict(h2o_codec_predictor predictor, uint8_t * plane, uint32_t n_rows, uint32_t width);
