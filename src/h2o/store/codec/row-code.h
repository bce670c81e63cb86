#pragma once

#include "h2o/store/codec/huffman.h"
#include "h2o/store/codec/codec.h"

// Rows of which each can be decoded alone, which takes less than a microsecond: for stores of which few rows are read. The code is made
// once, from rows like those that will be encoded; it is not stored with them.
//
// A row's bytes are taken apart into planes. Of each plane the channels (bytes at the same place of all rows) are put into a few groups by
// which bytes come in them, and each group has a Huffman code of its own. Planes that it does not make smaller stay as they are.
class h2o_codec_row_code {
public:
    // bytes behind an encoded row that decode() may read
    static constexpr size_t READ_AHEAD = 8;

    // shape: of one of the types that there are, with rows of whole blocks
    h2o_codec_row_code(const uint8_t * rows, const h2o_codec_shape & shape);

    // Appends n rows to `out` and to `ends` where each of them ends, counted from where the first begins.
    void encode(const uint8_t * rows, uint32_t n, std::vector<uint8_t> & out, std::vector<uint32_t> & ends) const;

    // Rows [first, first + n), one after another to `out`. data: their bytes, of which `ends` says as encode() did where each ends.
    // Throws h2o_codec_error if they are not those that encode() gave.
    void decode(const uint8_t * data, const uint32_t * ends, uint32_t first, uint32_t n, uint8_t * out) const;

    // rows will be decoded soon
    void prefetch() const;

    // bytes of n rows if they are like those that the code was made from
    double expected_bytes(uint32_t n) const { return n*mean_row_bytes; }

    // memory that the code takes
    size_t n_bytes() const;

private:
    struct plane {
        uint32_t width;
        bool     is_coded;
    };

    void add_plane(plane & p, const std::vector<h2o_codec_huffman::histogram> & channels, uint32_t n_rows);

    // What is behind the last byte; 4 bytes from there on may be written to.
    uint8_t * write_stream(const uint8_t * bytes, size_t begin, size_t end, uint8_t * out) const;

    void decode_row(const uint8_t * data, size_t n, uint8_t * coded, uint8_t * out) const;

    const h2o_codec_type type;
    const uint32_t       row_bytes;

    double mean_row_bytes;

    std::vector<plane>   planes;
    std::vector<uint8_t> group_of; // each channel of the planes that are coded, one plane after another

    // of each group
    std::vector<h2o_codec_huffman::words_t>   words;
    std::vector<h2o_codec_huffman::entries_t> entries;
};
