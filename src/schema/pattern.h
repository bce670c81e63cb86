#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

// GBNF of the JSON strings, without their quotes, in which a regular expression is found. The expression is as ECMA-262
// has it; \d and \w are ASCII. char_rule is GBNF for any character of a JSON string. Throws std::invalid_argument if it
// is not a regular expression, or says what a grammar cannot.
std::string h2o_pattern_to_gbnf(const std::string & pattern, const std::string & char_rule);

// GBNF of the JSON strings that are none of these. Throws std::invalid_argument if one is too long.
std::string h2o_other_strings_to_gbnf(const std::vector<std::string> & strings, const std::string & char_rule);

// GBNF of one of some texts. A common beginning is there once, as a sampler's time grows with the places at which a
// text can begin.
std::string h2o_choice_to_gbnf(std::vector<std::string> texts);

// GBNF of the optional properties of an object, which stand in this order: item i begins with the i-th, which "*" may
// repeat. `pairs` are the rules of name and value; add_rest(k, rule) makes a rule of what may follow property k, and
// returns its name.
std::vector<std::string> h2o_optional_to_gbnf(const std::vector<std::string> & names,
        const std::unordered_map<std::string, std::string> & pairs,
        const std::function<std::string(const std::string &, const std::string &)> & add_rest);
