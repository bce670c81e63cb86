#pragma once

#include <optional>
#include <string>

// A bound of a JSON schema: a number in JSON's notation, and whether the number itself is outside.
struct h2o_number_bound {
    std::string number;
    bool        is_exclusive;
};

// GBNF of the JSON numbers within bounds: without exponents, and with at most 16 digits before and after the point.
// Empty without such a number.
std::string h2o_number_range_to_gbnf(const std::optional<h2o_number_bound> & min,
        const std::optional<h2o_number_bound> & max, bool is_integer);
