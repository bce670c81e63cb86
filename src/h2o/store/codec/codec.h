#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

// Lossless compression of rows of K or V. A block is n_rows rows (one for each token) of row_bytes bytes, all of one type. It becomes
// a frame, which says by itself what it holds. docs/kv-tiers.md describes the format and what was measured.
//
// A bad argument is std::invalid_argument. All functions can be called from several threads at once.

// A frame that is damaged, or not one.
struct h2o_codec_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// What the rows consist of. The numbers are in frames.
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

// How bytes become fewer. The numbers are in frames.
enum h2o_codec_entropy : uint8_t {
    H2O_CODEC_ENTROPY_RAW  = 0,
    H2O_CODEC_ENTROPY_RLE  = 1, // one byte, where all are equal
    H2O_CODEC_ENTROPY_LZ4  = 2,
    H2O_CODEC_ENTROPY_ZSTD = 3,
    H2O_CODEC_ENTROPY_COUNT,
    H2O_CODEC_ENTROPY_AUTO = 255, // RLE where it can be, else ZSTD, which is smaller than LZ4
};

// What is left of a plane of bytes for the entropy stage. The numbers are in frames.
enum h2o_codec_predictor : uint8_t {
    H2O_CODEC_PREDICTOR_RAW        = 0,
    H2O_CODEC_PREDICTOR_DELTA      = 1, // difference from the row before
    H2O_CODEC_PREDICTOR_XOR        = 2, // exclusive or with the row before
    H2O_CODEC_PREDICTOR_PAIR       = 3, // difference of a byte at an odd place from the one to its left
    H2O_CODEC_PREDICTOR_PAIR_DELTA = 4, // PAIR, then DELTA
    H2O_CODEC_PREDICTOR_CONTEXT    = 5, // apart by how large the same channel was in the row before: h2o-codec-context.h
    H2O_CODEC_PREDICTOR_COUNT,
    H2O_CODEC_PREDICTOR_AUTO = 255, // what promises to be smallest, for each plane
};

struct h2o_codec_shape {
    h2o_codec_type type      = H2O_CODEC_TYPE_U8;
    uint32_t       n_rows    = 0;
    uint32_t       row_bytes = 0;

    uint64_t bytes() const { return (uint64_t) n_rows*row_bytes; }
};

struct h2o_codec_options {
    h2o_codec_entropy   entropy    = H2O_CODEC_ENTROPY_AUTO;
    h2o_codec_predictor predictor  = H2O_CODEC_PREDICTOR_AUTO;
    bool                equal_rows = true; // rows that are equal to an earlier one are stored once
};

// What a frame says of itself.
struct h2o_codec_plane_info {
    h2o_codec_predictor predictor;
    uint64_t            raw_bytes;    // of all rows
    uint64_t            stored_bytes; // with its headers
    std::vector<h2o_codec_entropy> entropy; // of each stream
};

struct h2o_codec_info {
    h2o_codec_shape shape;
    uint32_t        n_kept = 0; // rows that are not equal to an earlier one
    std::vector<h2o_codec_plane_info> planes; // none: the bytes as they were
};

// data: shape.bytes() of them. A frame is never longer than that and H2O_CODEC_HEADER_BYTES.
constexpr size_t H2O_CODEC_HEADER_BYTES = 36;

std::vector<uint8_t> h2o_codec_encode(const uint8_t * data, const h2o_codec_shape & shape, const h2o_codec_options & options = {});

// As h2o_codec_read_frame() of h2o-codec-frame.h gives it, which checks the checksum.
struct h2o_codec_frame;

h2o_codec_info h2o_codec_inspect(const h2o_codec_frame & frame);

// out: as many bytes as the frame's shape. When it throws h2o_codec_error, out holds anything.
void h2o_codec_decode(const h2o_codec_frame & frame, uint8_t * out);

// Bytes of a block of this type, of which rows have a whole number.
uint32_t h2o_codec_block_bytes(h2o_codec_type type);
