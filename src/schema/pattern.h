#pragma once

#include <string>
#include <vector>

// GBNF of the JSON strings, without their quotes, in which a regular expression is found. The expression is as ECMA-262
// has it; \d and \w are ASCII. char_rule is GBNF for any character of a JSON string. Throws std::invalid_argument if it
// is not a regular expression, or says what a grammar cannot.
std::string h2o_pattern_to_gbnf(const std::string & pattern, const std::string & char_rule);

// GBNF of the JSON strings that are none of these. Throws std::invalid_argument if one is too long.
std::string h2o_other_strings_to_gbnf(const std::vector<std::string> & strings, const std::string & char_rule);
