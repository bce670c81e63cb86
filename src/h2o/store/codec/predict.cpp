#include "h2o/store/codec/planes.h"

// `f(byte, other)` for each byte at an odd place of a row and the one to its left.
template <typename F>
static void each_pair(uint8_t * plane, uint32_t n_rows, uint32_t width, const F & f) {
    for (uint32_t r = 0; r < n_rows; ++r, plane += width) {
        for (uint32_t i = 0; i + 1 < width; i += 2) {
            f(plane[i + 1], plane[i]);
        }
    }
}

// `f(byte, other)` for each byte and that of the row before, as it was: from the last row on.
template <typename F>
static void each_row_back(uint8_t * plane, uint32_t n_rows, uint32_t width, const F & f) {
    for (size_t i = (size_t) n_rows*width; i-- > width; ) {
        f(plane[i], plane[i - width]);
    }
}

// The same, as it has become: from the first row on.
template <typename F>
static void each_row(uint8_t * plane, uint32_t n_rows, uint32_t width, const F & f) {
    for (uint32_t r = 1; r < n_rows; ++r, plane += width) {
        for (uint32_t i = 0; i < width; ++i) {
            f(plane[width + i], plane[i]);
        }
    }
}

static const auto subtract = [](uint8_t & byte, uint8_t other) { byte -= other; };
static const auto add      = [](uint8_t & byte, uint8_t other) { byte += other; };
static const auto flip     = [](uint8_t & byte, uint8_t other) { byte ^= other; };

void h2o_codec_predict(h2o_codec_predictor predictor, uint8_t * plane, uint32_t n_rows, uint32_t width) {
    if (predictor == H2O_CODEC_PREDICTOR_PAIR || predictor == H2O_CODEC_PREDICTOR_PAIR_DELTA) {
        each_pair(plane, n_rows, width, subtract);
    }
    if (predictor == H2O_CODEC_PREDICTOR_DELTA || predictor == H2O_CODEC_PREDICTOR_PAIR_DELTA) {
        each_row_back(plane, n_rows, width, subtract);
    }
    if (predictor == H2O_CODEC_PREDICTOR_XOR) {
        each_row_back(plane, n_rows, width, flip);
    }
}

void h2o_codec_unpredict(h2o_codec_predictor predictor, uint8_t * plane, uint32_t n_rows, uint32_t width) {
    if (predictor == H2O_CODEC_PREDICTOR_DELTA || predictor == H2O_CODEC_PREDICTOR_PAIR_DELTA) {
        each_row(plane, n_rows, width, add);
    }
    if (predictor == H2O_CODEC_PREDICTOR_PAIR || predictor == H2O_CODEC_PREDICTOR_PAIR_DELTA) {
        each_pair(plane, n_rows, width, add);
    }
    if (predictor == H2O_CODEC_PREDICTOR_XOR) {
        each_row(plane, n_rows, width, flip);
    }
}
