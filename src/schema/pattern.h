#pragma once

#include <string>
#include <vector>

// GBNF of the JSON strings in which a regular expression of ECMA-262 is found. It has groups, alternatives in a group,
// classes with \d, \w and \s, and repetitions; \d and \w are ASCII. Classes and the dot admit no character that JSON
// escapes. Uses upstream's rule "char". Throws std::invalid_argument, saying why, if it has anything else.
std::string h2o_pattern_to_gbnf(const std::string & pattern);

// GBNF of the JSON strings that are none of these. Uses upstream's rule "char".
std::string h2o_other_strings_to_gbnf(const std::vector<std::string> & strings);

// GBNF of one of some JSON texts. A common beginning is there once, as a sampler's time grows with the places at which
// a text can begin.
std::string h2o_choice_to_gbnf(const std::vector<std::string> & texts);
