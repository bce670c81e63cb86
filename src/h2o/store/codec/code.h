#pragma once

#include "h2o/store/codec/huffman.h"
#include "h2o/store/codec/planes.h"

#include <memory>

struct h2o_codec_options {
    h2o_codec_predictor predictor = H2O_CODEC_PREDICTOR_AUTO;
    uint32_t unit_rows  = 0;     // rows that are decoded together, at most; 0: as many as there may be
    bool     for_others = false; // rows like these will be encoded, too: every byte has a word
};

// How rows of one type and length are encoded: planes of bytes, and of each the predictor and the Huffman code of what that leaves.
class h2o_codec_code {
public:
    // From rows of whole ggml blocks.
    h2o_codec_code(const uint8_t * rows, const h2o_codec_shape & shape, const h2o_codec_options & options = {});

    // From the n bytes that write() gave, to decode. Throws h2o_codec_error.
    h2o_codec_code(h2o_codec_type type, uint32_t row_bytes, uint32_t unit_rows, const uint8_t * data, size_t n);

    std::vector<uint8_t> write() const;

    // Appends a unit of n rows, at most unit_rows: no more than H2O_CODEC_CHECKSUM_BYTES longer than they are.
    void encode(const uint8_t * rows, uint32_t n, std::vector<uint8_t> & out) const;

    // Writes the n rows of a unit. Throws h2o_codec_error if it is not what encode() made; then out holds anything.
    void decode(const uint8_t * unit, size_t n_bytes, uint32_t n, uint8_t * out) const;

    // units will be decoded soon
    void prefetch() const;

    // memory that it takes
    size_t n_bytes() const;

    const h2o_codec_type type;
    const uint32_t       row_bytes;
    const uint32_t       unit_rows;

private:
    struct plane {
        uint32_t            width; // bytes of a row
        h2o_codec_predictor predictor = H2O_CODEC_PREDICTOR_RAW;

        // The Huffman code, as zstd says it. Empty: the plane stays as it is.
        std::vector<uint8_t> weights;
        std::unique_ptr<h2o_huffman_encoder> encoder;
        std::unique_ptr<h2o_huffman_decoder> decoder;
    };

    void choose(plane & p, std::vector<uint8_t> bytes, uint32_t n_rows, const h2o_codec_options & options);

    void add_decoder(plane & p);

    std::vector<plane> planes;
    uint32_t n_coded = 0; // of them
};
