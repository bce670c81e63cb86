#include "h2o/store/codec/predict.h"

static void pair_forward(uint8_t * plane, uint32_t n_rows, uint32_t width) {
    for (uint32_t r = 0; r < n_rows; ++r, plane += width) {
        for (uint32_t i = 0; i + 1 < width; i += 2) {
            plane[i + 1] -= plane[i];
        }
    }
}

static void pair_back(uint8_t * plane, uint32_t n_rows, uint32_t width) {
    for (uint32_t r = 0; r < n_rows; ++r, plane += width) {
        for (uint32_t i = 0; i + 1 < width; i += 2) {
            plane[i + 1] += plane[i];
        }
    }
}

// From the last row on, as each needs the one before as it was; back from the first on.

static void delta_forward(uint8_t * plane, uint32_t n_rows, uint32_t width) {
    for (size_t i = (size_t) n_rows*width; i-- > width; ) {
        plane[i] -= plane[i - width];
    }
}

static void delta_back(uint8_t * plane, uint32_t n_rows, uint32_t width) {
    for (uint32_t r = 1; r < n_rows; ++r, plane += width) {
        for (uint32_t i = 0; i < width; ++i) {
            plane[width + i] += plane[i];
        }
    }
}

static void xor_forward(uint8_t * plane, uint32_t n_rows, uint32_t width) {
    for (size_t i = (size_t) n_rows*width; i-- > width; ) {
        plane[i] ^= plane[i - width];
    }
}

static void xor_back(uint8_t * plane, uint32_t n_rows, uint32_t width) {
    for (uint32_t r = 1; r < n_rows; ++r, plane += width) {
        for (uint32_t i = 0; i < width; ++i) {
            plane[width + i] ^= plane[i];
        }
    }
}

void h2o_codec_predict(h2o_codec_predictor predictor, uint8_t * plane, uint32_t n_rows, uint32_t width) {
    if (predictor == H2O_CODEC_PREDICTOR_PAIR || predictor == H2O_CODEC_PREDICTOR_PAIR_DELTA) {
        pair_forward(plane, n_rows, width);
    }
    if (predictor == H2O_CODEC_PREDICTOR_DELTA || predictor == H2O_CODEC_PREDICTOR_PAIR_DELTA) {
        delta_forward(plane, n_rows, width);
    }
    if (predictor == H2O_CODEC_PREDICTOR_XOR) {
        xor_forward(plane, n_rows, width);
    }
}

void h2o_codec_unpredict(h2o_codec_predictor predictor, uint8_t * plane, uint32_t n_rows, uint32_t width) {
    if (predictor == H2O_CODEC_PREDICTOR_DELTA || predictor == H2O_CODEC_PREDICTOR_PAIR_DELTA) {
        delta_back(plane, n_rows, width);
    }
    if (predictor == H2O_CODEC_PREDICTOR_PAIR || predictor == H2O_CODEC_PREDICTOR_PAIR_DELTA) {
        pair_back(plane, n_rows, width);
    }
    if (predictor == H2O_CODEC_PREDICTOR_XOR) {
        xor_back(plane, n_rows, width);
    }
}

void h2o_codec_fold(uint8_t * bytes, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        bytes[i] ^= (bytes[i] & 0x80) ? 0x7f : 0;
    }
}
