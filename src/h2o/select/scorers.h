#pragma once

#include "h2o/select/scorer.h"

#include <vector>

const h2o_scorer & h2o_scorer_sum();
const h2o_scorer & h2o_scorer_distant();
const h2o_scorer & h2o_scorer_block_ema();

// all of them, the default first
const std::vector<const h2o_scorer *> & h2o_scorers();

// NULL or "" is the default. Throws std::invalid_argument, with the names, if there is none of that name.
const h2o_scorer & h2o_find_scorer(const char * name);
