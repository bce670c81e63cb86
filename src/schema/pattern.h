#pragma once

#include <string>
#include <vector>

// GBNF of the JSON strings in which a regular expression is found. The expression is as ECMA-262 has it; \d and \w
// are ASCII. Where JSON escapes a character, a class admits its letter: \n, but not \u000a. Uses upstream's rule
// "char". Throws std::invalid_argument if it is not a regular expression, or says what a grammar cannot.
std::string h2o_pattern_to_gbnf(const std::string & pattern);

// GBNF of the JSON strings that are none of these. Uses upstream's rule "char".
std::string h2o_other_strings_to_gbnf(const std::vector<std::string> & strings);

// GBNF of one of some JSON texts. A common beginning is there once, as a sampler's time grows with the places at which
// a text can begin.
std::string h2o_choice_to_gbnf(const std::vector<std::string> & texts);
