#pragma once

#include "h2o/store/codec/codec.h"

// The entropy stage: a stream of bytes that becomes shorter, or stays as it is.

// Appends the stream to `out` and says how it is coded: RAW where the one asked for fails or does not shrink it. With may_repeat, LZ77
// matches are looked for; without, zstd's Huffman code alone is used, which is several times as fast.
h2o_codec_entropy h2o_codec_compress(
        h2o_codec_entropy entropy, const uint8_t * data, size_t n, bool may_repeat, std::vector<uint8_t> & out);

// `out` is filled; throws h2o_codec_error where the bytes do not give exactly n_out
void h2o_codec_decompress(h2o_codec_entropy entropy, const uint8_t * data, size_t n, uint8_t * out, size_t n_out);

// Bytes that LZ4 makes of n, of which there should be a few thousand: where that is less, there are repetitions.
size_t h2o_codec_probe(const uint8_t * data, size_t n);

uint64_t h2o_codec_hash(const uint8_t * data, size_t n, uint64_t seed); // XXH64
