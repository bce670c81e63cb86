#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

// Lossless compression of rows of K or V. docs/kv-tiers.md describes the format and what was measured.
//
// A block is n_rows rows (one for each token) of row_bytes bytes, all of one type. Its bytes are units of a few rows, each of which is
// decoded alone. A code says how they are encoded; blocks may share it.
//
// A bad argument is std::invalid_argument. All functions can be called from several threads at once.

// What is to be decoded is damaged.
struct h2o_codec_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// What the rows consist of. The numbers are in what is stored.
enum h2o_codec_type : uint8_t {
    H2O_CODEC_TYPE_U8   = 0, // bytes of which nothing is known
    H2O_CODEC_TYPE_F16  = 1,
    H2O_CODEC_TYPE_BF16 = 2,
    H2O_CODEC_TYPE_F32  = 3,
    H2O_CODEC_TYPE_Q8_0 = 4, // ggml's blocks, here and below
    H2O_CODEC_TYPE_Q4_0 = 5,
    H2O_CODEC_TYPE_Q4_1 = 6,
    H2O_CODEC_TYPE_Q5_0 = 7,
    H2O_CODEC_TYPE_Q5_1 = 8,
    H2O_CODEC_TYPE_COUNT,
};

// What is left of a plane of bytes for the Huffman code. The numbers are in what is stored.
enum h2o_codec_predictor : uint8_t {
    H2O_CODEC_PREDICTOR_RAW        = 0,
    H2O_CODEC_PREDICTOR_DELTA      = 1, // difference from the row before, in the same unit
    H2O_CODEC_PREDICTOR_XOR        = 2, // exclusive or with it
    H2O_CODEC_PREDICTOR_PAIR       = 3, // difference of a byte at an odd place from the one to its left
    H2O_CODEC_PREDICTOR_PAIR_DELTA = 4, // PAIR, then DELTA
    H2O_CODEC_PREDICTOR_COUNT,
    H2O_CODEC_PREDICTOR_AUTO = 255, // what promises to be smallest, for each plane
};

struct h2o_codec_shape {
    h2o_codec_type type      = H2O_CODEC_TYPE_U8;
    uint32_t       n_rows    = 0;
    uint32_t       row_bytes = 0;

    uint64_t bytes() const { return (uint64_t) n_rows*row_bytes; }
};

// Bytes of a unit's rows, at most: 16 bits tell a plane's length. One row that is longer is a unit, too, and stays as it is.
constexpr size_t H2O_CODEC_MAX_UNIT = 0xffff;

constexpr size_t H2O_CODEC_CHECKSUM_BYTES = 4; // with which a unit begins
