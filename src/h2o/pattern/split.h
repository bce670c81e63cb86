#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Splits the pieces of a text further: every match of the pattern becomes a piece, and so does the text between two
// matches. `sizes` and the result are the pieces' lengths in characters. Throws std::invalid_argument for a pattern
// that h2o_parse_pattern does not support.
std::vector<size_t> h2o_split(
        const std::vector<uint32_t> & text, const std::string & pattern, const std::vector<size_t> & sizes);
