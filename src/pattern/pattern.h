#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Regular expressions, which PCRE2 matches. These functions throw std::invalid_argument for a wrong pattern, and
// std::runtime_error for a match that takes too many steps or too much memory.

// Splits the pieces of a text further: every match of the pattern becomes a piece, and so does the text between two
// matches. `sizes` and the result are the pieces' lengths in characters.
std::vector<size_t> h2o_split(
        std::vector<uint32_t> text, const std::string & pattern, const std::vector<size_t> & sizes);

// The pattern that is used for one of upstream's pre-tokenizers.
std::string h2o_pre_tokenizer(std::string pattern);

// Finds a pattern's first match in a text. Returns the byte where its first nonempty group begins, where the match
// begins if it has none, and std::string::npos without a match. \d, \s, \w and \b are of ASCII, as in std::regex.
size_t h2o_find(const std::string & pattern, const std::string & text);
