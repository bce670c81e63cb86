#pragma once

#include "json.h"

#include <stdexcept>
#include <string>
#include <vector>

// What one JSON schema says by itself, for simplify.cpp.
namespace h2o_schema {

// What a grammar cannot say: the keyword, and the place of its schema, such as #/properties/a.
struct refusal : std::invalid_argument {
    refusal(const std::string & keyword, const std::string & place, const std::string & what)
        : std::invalid_argument(what), keyword(keyword), place(place) {}

    const std::string keyword;
    const std::string place;
};

// Throws a refusal if it is not right. The place is added later.
void check(bool is_right, const std::string & keyword, const std::string & why);

bool is_integer(const common_json & value);
bool is_of_type(const common_json & value, const std::string & type); // throws for an unknown type

const common_json &      list_of(const common_json & schema, const std::string & keyword); // not empty
std::vector<std::string> strings_of(const common_json & schema, const std::string & keyword);

// The type that a keyword applies to, whatever "type" says; "" for all types.
const std::string & type_of_keyword(const std::string & keyword);

// "type" as a list; else the types that keywords of the schema are about.
std::vector<std::string> types_of(const common_json & schema);

// All keywords about values but $ref and allOf. A const is an enum.
common_json assertions(const common_json & schema);

// Both hold: results of assertions().
void merge(common_json & all, const common_json & more);

} // namespace h2o_schema
