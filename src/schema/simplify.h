#pragma once

#include "json.h"

#include <string>
#include <vector>

// A JSON schema in the form that upstream's json_schema_to_grammar() translates rightly: each schema in it is {},
// {"$ref"}, {"anyOf"}, {"enum"}, or one type with its own keywords. The keyword "gbnf" is ours, and patch 0024 reads
// it: GBNF of the values or, next to an anyOf as additionalProperties, of their names. What $refs name lies in "$defs",
// under names that no other schema has.
//
// The result admits no value that the schema refuses, with three exceptions that users expect: oneOf is read as anyOf,
// uniqueItems and formats without a rule are not kept. It may admit less: where a schema has properties,
// additionalProperties is false unless it is given, and a schema with keywords of some types, but without "type", is
// for these types. Throws std::invalid_argument, naming the keyword and its place, if a grammar cannot say it.
common_json h2o_simplified_schema(const common_json & schema);

// A tool's schema without the keywords that a grammar cannot say. `left_out` names them and their places.
common_json h2o_relaxed_schema(common_json schema, std::vector<std::string> * left_out = nullptr);
