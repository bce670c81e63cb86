#pragma once

#include "json.h"

#include <functional>
#include <string>

// The schema that a $ref names. Throws if there is none.
using h2o_schema_resolver = std::function<const common_json &(const std::string & ref)>;

// A JSON schema as json_schema_to_grammar() can say it, which knows one keyword at a time: {}, {"$ref"}, {"anyOf"},
// {"enum"}, or one type with its own keywords. Only the outermost level is rewritten: inner schemas come here when they
// are read.
//
// The result admits no value that the schema refuses, with three exceptions that users expect: oneOf is read as anyOf,
// uniqueItems and formats without a rule are not kept. It may admit less: where a schema has properties,
// additionalProperties is false unless it is given, and a schema with keywords of some types, but without "type", is
// for these types. Throws std::invalid_argument, naming the keyword, if a grammar cannot say it.
common_json h2o_simplify_schema(const common_json & schema, const h2o_schema_resolver & resolve);

// A name as a grammar's rules can have it: each run of other characters than letters, digits and - becomes one -.
std::string h2o_rule_name(const std::string & name);

// What a $ref into the same document names: "#" or "#/...", a JSON pointer. Throws std::invalid_argument.
const common_json & h2o_resolve_pointer(const common_json & document, const std::string & ref);
