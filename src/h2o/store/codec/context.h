#pragma once

#include "h2o/store/codec/codec.h"

#include <array>

// CONTEXT: a channel of K or V that was large in one row is large in the next, and has its sign more often than not; but how much it
// differs cannot be told. So nothing is subtracted: bytes are put apart by the magnitude (the lower 7 bits) that the byte of the same
// channel had in the row before, and each of these streams has an entropy code of its own. Signs are those relative to the row before.
//
// The left half of a row's bytes takes its places in a stream from the beginning on, the right half from the end back: two independent
// chains for the CPU to work on. The row before the first one is zeros.
constexpr uint32_t H2O_CODEC_MAX_CONTEXTS = 16;

// magnitudes from which on the next context begins, ascending; contexts are one more
struct h2o_codec_thresholds {
    uint32_t n = 0;
    std::array<uint8_t, H2O_CODEC_MAX_CONTEXTS - 1> at{};
};

// plane: [n_rows][width] -> n + 1 streams, one after the other in `streams`, with room for as many bytes as the plane has
void h2o_codec_to_contexts(const uint8_t * plane, uint32_t n_rows, uint32_t width, const h2o_codec_thresholds & thresholds,
        uint8_t * streams, std::array<size_t, H2O_CODEC_MAX_CONTEXTS> & sizes);

// `streams` has `width` bytes before and after it, of any value, that may be read. Throws h2o_codec_error if sizes do not fit.
void h2o_codec_from_contexts(const uint8_t * streams, const std::array<size_t, H2O_CODEC_MAX_CONTEXTS> & sizes,
        const h2o_codec_thresholds & thresholds, uint8_t * plane, uint32_t n_rows, uint32_t width);

// the context of each byte of a row, by the row before
void h2o_codec_contexts_of(const uint8_t * before, uint32_t width, const h2o_codec_thresholds & thresholds, uint8_t * contexts);
