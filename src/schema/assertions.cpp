#include "schema/assertions.h"

#include <algorithm>
#include <cmath>
#include <map>

using json    = common_json;
using strings = std::vector<std::string>;

// keywords about values, by type
static const std::map<std::string, std::string> KEYWORDS = {
    { "type", "" }, { "enum", "" }, { "const", "" }, { "$ref", "" }, { "allOf", "" }, { "anyOf", "" }, { "oneOf", "" },
    { "properties", "object" }, { "required", "object" }, { "additionalProperties", "object" },
    { "propertyNames", "object" }, { "unevaluatedProperties", "object" },
    { "items", "array" }, { "prefixItems", "array" }, { "minItems", "array" }, { "maxItems", "array" },
    { "minimum", "number" }, { "maximum", "number" },
    { "exclusiveMinimum", "number" }, { "exclusiveMaximum", "number" },
    { "pattern", "string" }, { "minLength", "string" }, { "maxLength", "string" }, { "format", "string" },
};

static const strings UNSUPPORTED = { "not", "if", "$dynamicRef", "$recursiveRef", "multipleOf", "contains",
    "unevaluatedItems", "minProperties", "maxProperties", "patternProperties", "dependentRequired", "dependentSchemas",
    "dependencies", "disallow", "divisibleBy", "extends" };

static const strings FORMATS = { "date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5" };

namespace h2o_schema {

void check(bool is_right, const std::string & keyword, const std::string & why) {
    if (!is_right) {
        throw refusal(keyword, "", "\"" + keyword + "\" " + why);
    }
}

static bool contains(const strings & list, const std::string & what) {
    return std::find(list.begin(), list.end(), what) != list.end();
}

bool is_integer(const json & value) {
    return value.is_number_integer() || (value.is_number() && std::trunc(value.get<double>()) == value.get<double>());
}

bool is_of_type(const json & value, const std::string & type) {
    return type == "null" ? value.is_null() : type == "boolean" ? value.is_boolean() :
        type == "object" ? value.is_object() : type == "array" ? value.is_array() :
        type == "string" ? value.is_string() : type == "integer" ? is_integer(value) :
        type == "number" ? value.is_number() : throw refusal("type", "", "unrecognized type " + type);
}

const json & list_of(const json & schema, const std::string & keyword) {
    const json & list = schema.at(keyword);
    check(list.is_array() && !list.empty(), keyword, "must be a non-empty array");
    return list;
}

strings strings_of(const json & schema, const std::string & keyword) {
    const json list = schema.value(keyword, json::array());
    check(list.is_array(), keyword, "must be an array of strings");
    strings result;
    for (const auto & one : list) {
        check(one.is_string(), keyword, "must be an array of strings");
        result.push_back(one.get<std::string>());
    }
    return result;
}

const std::string & type_of_keyword(const std::string & keyword) { return KEYWORDS.at(keyword); }

strings types_of(const json & schema) {
    strings result;
    if (schema.contains("type")) {
        result = schema.at("type").is_string() ? strings { schema.at("type") } : strings_of(schema, "type");
        check(!result.empty(), "type", "must not be empty");
        return result;
    }
    for (const auto & [keyword, value] : schema.items()) {
        const std::string & type = type_of_keyword(keyword);
        if (!type.empty() && !contains(result, type)) {
            result.push_back(type);
        }
    }
    return result;
}

void merge(json & all, const json & more) {
    // additionalProperties of one would also be about the properties of the other
    const auto is_closed = [](const json & schema) { return schema.value("additionalProperties", json(true)) != true; };
    check(!(is_closed(all) && more.contains("properties")) && !(is_closed(more) && all.contains("properties")),
        "additionalProperties", "cannot be combined with properties of another schema");
    for (const auto & [keyword, value] : more.items()) {
        json merged = all.value(keyword, value);
        if (merged == value) {
            // said once, or twice alike
        } else if (keyword == "required") {
            merged.insert(value);
        } else if (keyword == "properties") {
            for (const auto & [name, schema] : value.items()) {
                const json own = merged.value(name, schema);
                merged[name] = own == schema ? schema : json { { "allOf", json::array({ own, schema }) } };
            }
        } else {
            check(false, keyword, "holds twice, with different values: a grammar cannot say both");
        }
        all[keyword] = merged;
    }
}

json assertions(const json & schema) {
    json result = json::object();
    for (const auto & [keyword, value] : schema.items()) {
        check(!contains(UNSUPPORTED, keyword), keyword,
            "is nothing that a grammar can say: leave it out, and check the answer instead");
        if (KEYWORDS.count(keyword) && !contains({ "$ref", "allOf", "const" }, keyword)) {
            result[keyword] = value;
        }
    }
    check(schema.value("format", json("")).is_string(), "format", "must be a string");
    if (!contains(FORMATS, schema.value("format", ""))) {
        result.erase("format");
    }
    if (schema.contains("const")) {
        merge(result, { { "enum", json::array({ schema.at("const") }) } });
    }
    // as drafts before 2020 have it
    if (schema.contains("items") && schema.at("items").is_array()) {
        result["prefixItems"] = schema.at("items");
        result["items"]       = schema.value("additionalItems", json(false));
    }
    check(schema.value("properties", json::object()).is_object(), "properties", "must be an object");
    strings_of(schema, "required");
    return result;
}

} // namespace h2o_schema
