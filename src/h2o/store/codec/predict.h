#pragma once

#include "h2o/store/codec/codec.h"

// The predictors that leave a byte for every byte: all but CONTEXT. In place, on a plane [n_rows][width]; the row before the first
// one is zeros.
void h2o_codec_predict  (h2o_codec_predictor predictor, uint8_t * plane, uint32_t n_rows, uint32_t width);
void h2o_codec_unpredict(h2o_codec_predictor predictor, uint8_t * plane, uint32_t n_rows, uint32_t width);

// Two's complement to sign and magnitude: 0, 1, … as they are; −1, −2, … as 128, 129, … It is its own inverse.
void h2o_codec_fold(uint8_t * bytes, size_t n);
