#pragma once

#include "h2o-scorer.h"

const h2o_scorer & h2o_scorer_sum();
const h2o_scorer & h2o_scorer_distant();
const h2o_scorer & h2o_scorer_key_diff();
