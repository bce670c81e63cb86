#pragma once

#include "ggml.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

struct ZSTD_CDict_s;
struct ZSTD_DDict_s;

// Lossless compression of rows of K or V: planes of bytes, a predictor, and zstd. Measured in docs/experiments.md.

// Encoded rows are damaged, or zstd has no memory.
struct h2o_codec_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// How rows of one type and length are encoded: the predictor, and a dictionary of zstd's with the entropy tables.
class h2o_codec_code {
public:
    // Made for rows like these n. A unit, which is decoded as a whole, has up to unit_rows rows.
    h2o_codec_code(const uint8_t * rows, uint32_t n, ggml_type type, uint32_t row_bytes, uint32_t unit_rows);

    // Appends a frame of zstd's with n rows. Throws h2o_codec_error.
    void encode(const uint8_t * rows, uint32_t n, std::vector<uint8_t> & out) const;

    // Writes the n rows of a frame. Throws h2o_codec_error; then out holds anything.
    void decode(const uint8_t * frame, size_t n_bytes, uint32_t n, uint8_t * out) const;

    const ggml_type type;
    const uint32_t  row_bytes;
    const uint32_t  unit_rows;

private:
    // How the plane is transformed for zstd.
    enum class predictor { RAW, DELTA, XOR }; // DELTA, XOR: with the row before, in the same unit

    void predict(predictor p, uint8_t * plane, uint32_t n_rows) const;
    void unpredict(uint8_t * plane, uint32_t n_rows) const;

    const uint32_t width; // bytes of a row in the plane

    predictor chosen = predictor::RAW;

    std::shared_ptr<const ZSTD_CDict_s> encoder;
    std::shared_ptr<const ZSTD_DDict_s> decoder;
};

// Encoded rows, without their frames' bytes, which follow one another wherever their owner put them.
struct h2o_codec_block {
    std::shared_ptr<const h2o_codec_code> code;

    uint32_t n_rows = 0;

    std::vector<uint32_t> ends; // of each unit's frame, in the bytes

    // Returns bytes [begin, end); valid until the next call.
    using reader = std::function<const uint8_t * (uint32_t begin, uint32_t end)>;

    // Writes rows [first, first + n). Throws h2o_codec_error.
    void decode(uint32_t first, uint32_t n, uint8_t * out, const reader & read) const;
};

// Appends the frames to `out`, which is empty.
h2o_codec_block h2o_codec_encode(const uint8_t * rows, uint32_t n_rows, std::shared_ptr<const h2o_codec_code> code,
    std::vector<uint8_t> & out);
