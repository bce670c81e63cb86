#pragma once

#include "json.h"

#include <string>

// GBNF of the JSON numbers within a schema's minimum, maximum, exclusiveMinimum and exclusiveMaximum: without
// exponents, and with at most 16 digits before and after the point. Empty without a bound. Throws
// std::invalid_argument if no number is within them.
std::string h2o_number_range_to_gbnf(const common_json & schema, bool is_integer);
