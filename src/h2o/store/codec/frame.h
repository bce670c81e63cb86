#pragma once

#include "h2o/store/codec/context.h"
#include "h2o/store/codec/planes.h"

// What is in a frame, all numbers with their lowest byte first:
//
//   "H2KV", u8 version, u8 type, u8 number of planes, u8 0
//   u32 n_rows, u32 row_bytes, u32 n_kept, u64 bytes of the frame
//   u64 XXH64 of all after it, seeded with the XXH64 of all before it
//   the equal rows, if n_kept < n_rows
//   planes: u8 predictor, u8 streams, (streams − 1) thresholds; streams: u8 entropy, u32 raw bytes, u32 bytes, bytes
//
// Without planes the rows follow as they were.
constexpr uint8_t H2O_CODEC_VERSION = 1;

struct h2o_codec_stream {
    h2o_codec_entropy entropy;
    size_t            n_raw;
    const uint8_t *   data;
    size_t            n_bytes;
};

struct h2o_codec_frame_plane {
    h2o_codec_predictor  predictor;
    h2o_codec_thresholds thresholds;
    size_t               n_bytes; // with headers
    std::vector<h2o_codec_stream> streams;
};

// Points into the frame's bytes, which stay where they are as long as it is used.
struct h2o_codec_frame {
    h2o_codec_shape shape;
    uint32_t        n_kept;
    const uint8_t * equal_rows; // NULL: none
    const uint8_t * raw;        // NULL: there are planes
    std::vector<h2o_codec_frame_plane> planes;
};

// Everything is checked but what the streams decode to. Throws h2o_codec_error.
h2o_codec_frame h2o_codec_read_frame(const uint8_t * data, size_t n);

// The header is written last, over the H2O_CODEC_HEADER_BYTES that `frame` begins with.
void h2o_codec_write_header(std::vector<uint8_t> & frame, const h2o_codec_shape & shape, uint32_t n_kept, uint8_t n_planes);

inline void h2o_codec_write_u32(uint8_t * out, uint32_t value) {
    for (int i = 0; i < 4; ++i) {
        out[i] = value >> 8*i;
    }
}
