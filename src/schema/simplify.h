#pragma once

#include "json.h"

#include <string>

// A JSON schema that is read part by part.
struct h2o_schema_document {
    const common_json & root;
    int n_parts = 0; // so far, each time that a $ref names them
    int depth   = 0; // parts that are being read

    explicit h2o_schema_document(const common_json & root) : root(root) {}

    void count(const common_json & schema);
};

// A part of it as json_schema_to_grammar() can say it, which knows one keyword at a time: {}, {"$ref"}, {"anyOf"},
// {"enum"}, or one type with its own keywords, where "pattern" is GBNF and "range" is GBNF of what the bounds of a
// number admit. Only the outermost level is rewritten: inner schemas are parts of their own.
//
// The result admits no value that the schema refuses, with three exceptions that users expect: oneOf is read as anyOf,
// uniqueItems and formats without a rule are not kept. It may admit less: where a schema has properties,
// additionalProperties is false unless it is given, and a schema with keywords of some types, but without "type", is
// for these types. Throws std::invalid_argument, naming the keyword, if a grammar cannot say it.
struct h2o_schema_part {
    common_json schema;

    h2o_schema_part(h2o_schema_document & document, const common_json & given, const std::string & path);
    ~h2o_schema_part();

private:
    h2o_schema_document & document;

    void read(const common_json & given);
};

// A name as a grammar's rules can have it: each run of other characters than letters, digits and - becomes one -.
std::string h2o_rule_name(const std::string & name);

// What a $ref into the same document names: "#" or "#/...", a JSON pointer. Throws std::invalid_argument.
const common_json & h2o_resolve_pointer(const common_json & document, const common_json & ref);
