#pragma once

#include <optional>
#include <string>
#include <vector>

// A bound of a JSON schema: a number in JSON's notation, and whether the number itself is outside.
struct h2o_number_bound {
    std::string number;
    bool        is_exclusive;
};

// GBNF of the JSON numbers within bounds: without exponents, and with at most 16 digits before and after the point.
// Empty if no bound is given. Throws std::invalid_argument if no such number exists.
std::string h2o_number_range_to_gbnf(const std::vector<std::optional<h2o_number_bound>> & minima,
        const std::vector<std::optional<h2o_number_bound>> & maxima, bool is_integer);
