#pragma once

#include "h2o/store/codec/context.h"

struct h2o_codec_choice {
    h2o_codec_predictor  predictor = H2O_CODEC_PREDICTOR_RAW;
    h2o_codec_thresholds thresholds; // of CONTEXT
    bool                 may_repeat = false;
    bool                 is_raw     = false; // nothing to be gained: do not try
};

// The predictor after which a plane [n_rows][width] promises to be smallest, by the entropy of some of its rows; or how to use the one
// that is given.
h2o_codec_choice h2o_codec_choose(h2o_codec_predictor predictor, const uint8_t * plane, uint32_t n_rows, uint32_t width);
