#include "schema/simplify.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <vector>

using json = common_json;

static constexpr size_t MAX_ALTERNATIVES = 64;
static constexpr int    MAX_DEPTH        = 64; // of schemas that are merged
static constexpr int    MAX_PARTS        = 10000; // of one schema, each time that a $ref names them

static const std::vector<std::string> TYPES = { "null", "boolean", "object", "array", "number", "integer", "string" };

// keywords that apply to values of one type, whatever "type" says
static const std::vector<std::pair<std::string, std::vector<std::string>>> KEYWORDS = {
    { "object",
        { "properties", "required", "additionalProperties", "propertyNames", "patternProperties", "minProperties",
            "maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties" } },
    { "array",
        { "items", "prefixItems", "additionalItems", "minItems", "maxItems", "contains", "minContains", "maxContains",
            "unevaluatedItems", "uniqueItems" } },
    { "number", { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf" } },
    { "string", { "pattern", "minLength", "maxLength", "format" } },
};

// keywords that apply to values of all types, and that no grammar can say
static const std::vector<std::string> UNSUPPORTED = { "not", "$dynamicRef", "$recursiveRef" };

// No value fits: such an alternative is left out.
struct no_value : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

[[noreturn]] static void refuse(const std::string & keyword, const std::string & why) {
    throw std::invalid_argument("\"" + keyword + "\" " + why);
}

[[noreturn]] static void refuse(const std::string & keyword) {
    refuse(keyword, "is nothing that a grammar can say: leave it out, and check the answer instead");
}

static bool contains(const std::vector<std::string> & list, const std::string & what) {
    return std::find(list.begin(), list.end(), what) != list.end();
}

static std::string group_of(const std::string & type) { return type == "integer" ? "number" : type; }

// the keywords for values of a type, or none
static const std::vector<std::string> & keywords_of(const std::string & type) {
    static const std::vector<std::string> none;
    for (const auto & [group, keywords] : KEYWORDS) {
        if (group == group_of(type)) {
            return keywords;
        }
    }
    return none;
}

static bool is_integer(const json & value) {
    return value.is_number_integer() || (value.is_number() && std::trunc(value.get<double>()) == value.get<double>());
}

static std::string type_of(const json & value) {
    return value.is_null() ? "null" : value.is_boolean() ? "boolean" : value.is_object() ? "object" :
        value.is_array() ? "array" : value.is_string() ? "string" : is_integer(value) ? "integer" : "number";
}

static bool includes(const std::vector<std::string> & types, const std::string & type) {
    return contains(types, type) || (type == "integer" && contains(types, "number"));
}

// "type" as a list; nothing in it if there is none
static std::vector<std::string> types_of(const json & schema) {
    std::vector<std::string> result;
    if (schema.contains("type")) {
        const json & type = schema.at("type");
        if (!type.is_string() && (!type.is_array() || type.empty())) {
            refuse("type", "must be a string or an array of strings");
        }
        for (const auto & one : type) {
            if (!one.is_string()) {
                refuse("type", "must be a string or an array of strings");
            }
            const std::string name = one.get<std::string>();
            if (!contains(TYPES, name)) {
                throw std::invalid_argument("unrecognized type " + name);
            }
            result.push_back(name);
        }
        if (contains(result, "number")) {
            result.erase(std::remove(result.begin(), result.end(), "integer"), result.end());
        }
    }
    return result;
}

static void set_types(json & schema, const std::vector<std::string> & types) {
    json list = json::array();
    for (const auto & type : types) {
        list.push_back(type);
    }
    schema["type"] = list;
}

static std::vector<json> values_of(const json & schema) {
    std::vector<json> result;
    if (schema.contains("enum")) {
        const json & values = schema.at("enum");
        if (!values.is_array() || values.empty()) {
            refuse("enum", "must be a non-empty array");
        }
        for (const auto & value : values) {
            result.push_back(value);
        }
    }
    return result;
}

static bool admits_all(const json & schema) {
    return schema.is_boolean() ? schema.get<bool>() : schema.is_object() && schema.empty();
}

static json all_of(const json & a, const json & b) {
    if (a == b || admits_all(b)) {
        return a;
    }
    if (admits_all(a)) {
        return b;
    }
    json result;
    result["allOf"] = json::array({ a, b });
    return result;
}

static const json * member(const json & schema, const std::string & keyword) {
    return schema.contains(keyword) ? &schema.at(keyword) : nullptr;
}

static bool is(const json & schema, const std::string & keyword, bool value) {
    const json * given = member(schema, keyword);
    return given && given->is_boolean() && given->get<bool>() == value;
}

// --- merging: both schemas hold. They have no $ref, allOf, anyOf, oneOf, const

static json merged_properties(const json & a, const json & b) {
    json result = json::object();
    const auto add = [&](const json & from, const json & other) {
        if (!from.contains("properties")) {
            return;
        }
        for (const auto & [name, schema] : from.at("properties").items()) {
            if (result.contains(name)) {
                continue;
            }
            const json * more = other.contains("properties") ? member(other.at("properties"), name) : nullptr;
            more = more ? more : member(other, "additionalProperties");
            if (more && other.contains("patternProperties")) {
                refuse("patternProperties");
            }
            result[name] = more ? all_of(schema, *more) : schema;
        }
    };
    add(a, b);
    add(b, a);
    return result;
}

static json merged(const json & a, const json & b) {
    json result = a;
    for (const auto & [keyword, value] : b.items()) {
        if (!a.contains(keyword)) {
            result[keyword] = value;
            continue;
        }
        const json & own = a.at(keyword);
        if (own == value || keyword == "properties" || keyword == "additionalProperties") {
            continue;
        }
        if (keyword == "type") {
            std::vector<std::string> types;
            const auto of_a = types_of(a);
            const auto of_b = types_of(b);
            for (const auto & type : TYPES) {
                if (includes(of_a, type) && includes(of_b, type) && (contains(of_a, type) || contains(of_b, type))) {
                    types.push_back(type);
                }
            }
            if (types.empty()) {
                throw no_value("\"type\" excludes everything");
            }
            set_types(result, types);
        } else if (keyword == "enum") {
            json both = json::array();
            for (const auto & one : values_of(a)) {
                for (const auto & other : values_of(b)) {
                    if (one == other) {
                        both.push_back(one);
                        break;
                    }
                }
            }
            if (both.empty()) {
                throw no_value("\"enum\" excludes everything");
            }
            result[keyword] = both;
        } else if (keyword == "required" && own.is_array() && value.is_array()) {
            for (const auto & name : value) {
                result[keyword].push_back(name);
            }
        } else if (own.is_number() && value.is_number() &&
            (keyword.compare(0, 3, "min") == 0 || keyword == "exclusiveMinimum")) {
            result[keyword] = own.get<double>() > value.get<double>() ? own : value;
        } else if (own.is_number() && value.is_number() &&
            (keyword.compare(0, 3, "max") == 0 || keyword == "exclusiveMaximum")) {
            result[keyword] = own.get<double>() < value.get<double>() ? own : value;
        } else if (keyword == "items" || keyword == "propertyNames") {
            result[keyword] = all_of(own, value);
        } else if (keyword == "prefixItems" && own.is_array() && value.is_array() && own.size() == value.size()) {
            json items = json::array();
            for (size_t i = 0; i < own.size(); i++) {
                items.push_back(all_of(own.at(i), value.at(i)));
            }
            result[keyword] = items;
        } else if (keyword != "uniqueItems") {
            refuse(keyword, "holds twice, with different values: a grammar cannot say both");
        }
    }
    if (a.contains("properties") || b.contains("properties")) {
        result["properties"] = merged_properties(a, b);
    }
    if (a.contains("additionalProperties") && b.contains("additionalProperties")) {
        result["additionalProperties"] = all_of(a.at("additionalProperties"), b.at("additionalProperties"));
    }
    return result;
}

// What says something about values in a schema, but for $ref, allOf, anyOf and oneOf.
static json assertions(const json & schema) {
    json result = json::object();
    for (const auto & [keyword, value] : schema.items()) {
        bool is_assertion = keyword == "type" || keyword == "enum" || contains(UNSUPPORTED, keyword);
        for (const auto & group : KEYWORDS) {
            is_assertion = is_assertion || contains(group.second, keyword);
        }
        if (is_assertion) {
            result[keyword] = value;
        }
    }
    if (schema.contains("if") && (schema.contains("then") || schema.contains("else"))) {
        refuse("if");
    }
    for (const auto & keyword : UNSUPPORTED) {
        if (schema.contains(keyword)) {
            refuse(keyword);
        }
    }
    // as drafts before 2020 have it
    if (schema.contains("items") && schema.at("items").is_array()) {
        result["prefixItems"] = schema.at("items");
        result.erase("items");
        if (schema.contains("additionalItems")) {
            result["items"] = schema.at("additionalItems");
        }
    }
    result.erase("additionalItems"); // says nothing without such items
    if (schema.contains("const")) {
        json constant = json::object();
        constant["enum"] = json::array({ schema.at("const") });
        result = merged(result, constant);
    }
    return result;
}

static const json & alternatives(const json & schema, const std::string & keyword) {
    const json & list = schema.at(keyword);
    if (!list.is_array() || list.empty()) {
        refuse(keyword, "must be a non-empty array of schemas");
    }
    return list;
}

static void check_schema(const json & schema) {
    if (!schema.is_object() && !schema.is_boolean()) {
        throw std::invalid_argument("schema must be an object");
    }
    if (schema.is_boolean() && !schema.get<bool>()) {
        throw no_value("false admits no value");
    }
}

static bool says_nothing(const json & schema) {
    check_schema(schema);
    return schema.is_boolean() ||
        (assertions(schema).empty() && !schema.contains("$ref") && !schema.contains("allOf") &&
            !schema.contains("anyOf") && !schema.contains("oneOf"));
}

// The schema as alternatives, each without $ref, allOf, anyOf, oneOf and const at its outermost level.
static std::vector<json> flatten(const json & schema, const h2o_schema_resolver & resolve, int & n_left, int depth) {
    if (depth > MAX_DEPTH) {
        refuse("$ref", "leads to itself, or schemas are nested too deeply");
    }
    if (--n_left < 0) {
        refuse("allOf", "and $ref have too many combinations");
    }
    check_schema(schema);
    if (schema.is_boolean()) {
        return { json::object() };
    }
    std::vector<json> result = { assertions(schema) };

    const auto require = [&](const std::vector<json> & others) {
        std::vector<json> both;
        std::string why;
        for (const auto & one : result) {
            for (const auto & other : others) {
                try {
                    both.push_back(merged(one, other));
                } catch (const no_value & e) {
                    why = e.what();
                }
                if (both.size() > MAX_ALTERNATIVES) {
                    refuse("anyOf", "has too many combinations with the other keywords");
                }
            }
        }
        if (both.empty()) {
            throw no_value(why);
        }
        result = std::move(both);
    };

    if (schema.contains("$ref")) {
        require(flatten(resolve(schema.at("$ref").get<std::string>()), resolve, n_left, depth + 1));
    }
    if (schema.contains("allOf")) {
        for (const auto & part : alternatives(schema, "allOf")) {
            require(flatten(part, resolve, n_left, depth + 1));
        }
    }
    for (const std::string keyword : { "anyOf", "oneOf" }) {
        if (!schema.contains(keyword)) {
            continue;
        }
        std::vector<json> any;
        std::string why;
        for (const auto & part : alternatives(schema, keyword)) {
            try {
                const auto parts = flatten(part, resolve, n_left, depth + 1);
                any.insert(any.end(), parts.begin(), parts.end());
            } catch (const no_value & e) {
                why = e.what();
            }
        }
        if (any.empty()) {
            throw no_value(why);
        }
        require(any);
    }
    return result;
}

static std::vector<json> flatten(const json & schema, const h2o_schema_resolver & resolve) {
    int n_left = MAX_PARTS;
    return flatten(schema, resolve, n_left, 0);
}

// --- one type with its keywords

static size_t length_of(const std::string & text) {
    size_t result = 0;
    for (const char c : text) {
        result += ((unsigned char) c & 0xC0) != 0x80;
    }
    return result;
}

// Whether a value of an enum fits the other keywords. Throws if that cannot be said.
static bool fits(const json & value, const json & schema) {
    const std::string type = type_of(value);
    for (const auto & keyword : keywords_of(type)) {
        if (!schema.contains(keyword) || keyword == "format" || keyword == "uniqueItems") {
            continue;
        }
        const json & bound = schema.at(keyword);
        if ((type != "string" && group_of(type) != "number") || keyword == "pattern" || keyword == "multipleOf" ||
            !bound.is_number()) {
            refuse(keyword,
                "cannot be combined with enum or const: leave out the values that it excludes, and the keyword");
        }
        const double x = type == "string" ? (double) length_of(value.get<std::string>()) : value.get<double>();
        const double y = bound.get<double>();
        if ((keyword.compare(0, 3, "min") == 0 && x < y) || (keyword.compare(0, 3, "max") == 0 && x > y) ||
                (keyword == "exclusiveMinimum" && x <= y) || (keyword == "exclusiveMaximum" && x >= y)) {
            return false;
        }
    }
    return true;
}

static json enumeration(const json & schema, const std::vector<std::string> & types) {
    json values = json::array();
    for (const auto & value : values_of(schema)) {
        if ((types.empty() || includes(types, type_of(value))) && fits(value, schema)) {
            values.push_back(value);
        }
    }
    if (values.empty()) {
        throw no_value("no value of \"enum\" or \"const\" fits the other keywords");
    }
    json result = json::object();
    result["enum"] = values;
    return result;
}

static double count_of(const json & schema, const std::string & keyword, double if_missing) {
    const json * given = member(schema, keyword);
    if (!given) {
        return if_missing;
    }
    if (!is_integer(*given) || given->get<double>() < 0) {
        refuse(keyword, "must be a non-negative integer");
    }
    return given->get<double>();
}

static void check_counts(const json & schema, const std::string & min, const std::string & max) {
    if (count_of(schema, min, 0) > count_of(schema, max, INFINITY)) {
        throw no_value("\"" + min + "\" is above \"" + max + "\"");
    }
}

// Lengths that every text of a format has, shortest and longest.
static std::pair<double, double> lengths_of_format(const std::string & format) {
    return format == "date" ? std::make_pair(10, 10) : format == "time" ? std::make_pair(9, 18) :
        format == "date-time" ? std::make_pair(20, 29) : std::make_pair(36, 36);
}

static bool has_rule(const json & format) {
    static const std::vector<std::string> known = {
        "date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5" };
    return format.is_string() && contains(known, format.get<std::string>());
}

static void simplify_string(json & schema) {
    check_counts(schema, "minLength", "maxLength");
    if (schema.contains("format") && (schema.contains("pattern") || !has_rule(schema.at("format")))) {
        schema.erase("format");
    }
    for (const std::string keyword : { "minLength", "maxLength" }) {
        if (!schema.contains(keyword) || (keyword == "minLength" && count_of(schema, keyword, 0) == 0)) {
            schema.erase(keyword);
            continue;
        }
        if (schema.contains("pattern")) {
            refuse(keyword, "cannot be combined with pattern: say the length in the pattern");
        }
        if (schema.contains("format")) {
            const auto   lengths = lengths_of_format(schema.at("format").get<std::string>());
            const double bound   = count_of(schema, keyword, 0);
            if (keyword == "minLength" ? lengths.first < bound : lengths.second > bound) {
                refuse(keyword, "excludes texts of the format: leave it out");
            }
            schema.erase(keyword);
        }
    }
}

static void simplify_number(json & schema, const std::string & type) {
    if (schema.contains("multipleOf")) {
        const json & divisor = schema.at("multipleOf");
        if (type != "integer" || !divisor.is_number() || divisor.get<double>() != 1) {
            refuse("multipleOf");
        }
        schema.erase("multipleOf");
    }
}

static void simplify_array(json & schema) {
    check_counts(schema, "minItems", "maxItems");
    for (const std::string keyword : { "contains", "minContains", "maxContains" }) {
        if (schema.contains("contains") && schema.contains(keyword)) {
            refuse(keyword);
        }
        schema.erase(keyword);
    }
    if (schema.contains("unevaluatedItems")) {
        if (schema.contains("items")) {
            schema.erase("unevaluatedItems"); // which has evaluated all
        } else if (schema.at("unevaluatedItems").is_boolean()) {
            schema["items"] = schema.at("unevaluatedItems");
            schema.erase("unevaluatedItems");
        } else {
            refuse("unevaluatedItems");
        }
    }
    schema.erase("uniqueItems");

    const bool has_prefix = schema.contains("prefixItems") && !schema.at("prefixItems").empty();
    if (has_prefix && !schema.contains("items")) {
        schema["items"] = false; // as objects with properties
    }
    if (is(schema, "items", false)) {
        const size_t n = has_prefix ? schema.at("prefixItems").size() : 0;
        if (count_of(schema, "minItems", 0) > (double) n) {
            throw no_value("\"minItems\" is above the number of items that there are schemas for");
        }
        if (!has_prefix) {
            schema.erase("items");
            schema["maxItems"] = 0;
        }
    }
}

static void simplify_object(json & schema, const h2o_schema_resolver & resolve) {
    for (const std::string keyword : { "patternProperties", "dependentRequired", "dependentSchemas", "dependencies" }) {
        if (schema.contains(keyword) && !(schema.at(keyword).is_object() && schema.at(keyword).empty())) {
            refuse(keyword);
        }
        schema.erase(keyword);
    }
    if (schema.contains("unevaluatedProperties")) {
        if (!schema.contains("additionalProperties")) {
            schema["additionalProperties"] = schema.at("unevaluatedProperties");
        }
        schema.erase("unevaluatedProperties");
    }
    json properties = json::object();
    if (const json * given = member(schema, "properties")) {
        if (!given->is_object()) {
            refuse("properties", "must be an object");
        }
        properties = *given;
    }
    const bool is_closed =
        schema.contains("additionalProperties") ? is(schema, "additionalProperties", false) : !properties.empty();
    const json more =
        schema.contains("additionalProperties") && !is_closed ? schema.at("additionalProperties") : json(true);
    if (!more.is_boolean() && !more.is_object()) {
        refuse("additionalProperties", "must be a boolean or a schema");
    }
    bool is_open = !is_closed;

    std::set<std::string> required;
    if (const json * given = member(schema, "required")) {
        if (!given->is_array()) {
            refuse("required", "must be an array of strings");
        }
        for (const auto & name : *given) {
            if (!name.is_string()) {
                refuse("required", "must be an array of strings");
            }
            if (!required.insert(name.get<std::string>()).second || properties.contains(name.get<std::string>())) {
                continue;
            }
            if (is(schema, "additionalProperties", false)) {
                throw no_value(
                    "\"required\" has a property that \"additionalProperties\" forbids: " + name.get<std::string>());
            }
            properties[name.get<std::string>()] = more;
        }
    }

    if (const json * names = member(schema, "propertyNames")) {
        std::vector<json> allowed;
        bool is_free = false;
        for (const auto & alternative : flatten(*names, resolve)) {
            const auto types = types_of(alternative);
            if (!types.empty() && !contains(types, "string")) {
                continue;
            }
            if (alternative.contains("enum")) {
                const json known = enumeration(alternative, { "string" });
                for (const auto & name : known.at("enum")) {
                    allowed.push_back(name);
                }
                continue;
            }
            for (const auto & keyword : keywords_of("string")) {
                if (alternative.contains(keyword)) {
                    refuse("propertyNames", "can only be an enum: leave it out, and check the answer instead");
                }
            }
            is_free = true;
        }
        if (!is_free) {
            json named = json::object();
            for (const auto & name : allowed) {
                const std::string text = name.get<std::string>();
                if (properties.contains(text)) {
                    named[text] = properties.at(text);
                } else if (is_open) {
                    named[text] = more;
                }
            }
            for (const auto & name : required) {
                if (!named.contains(name)) {
                    throw no_value("\"required\" has a property that \"propertyNames\" forbids: " + name);
                }
            }
            properties = named;
            is_open    = false;
        }
        schema.erase("propertyNames");
    }

    // a property that must not be there
    json possible = json::object();
    for (const auto & [name, value] : properties.items()) {
        bool is_possible = true;
        try {
            check_schema(value);
            if (value.is_object() && value.contains("allOf")) {
                flatten(value, resolve);
            }
        } catch (const no_value &) {
            if (required.count(name) || is_open) {
                throw;
            }
            is_possible = false;
        }
        if (is_possible) {
            possible[name] = value;
        }
    }

    if (count_of(schema, "minProperties", 0) > (double) required.size()) {
        refuse(
            "minProperties", "is above the number of required properties: require more, or check the answer instead");
    }
    if (count_of(schema, "maxProperties", INFINITY) < (is_open ? INFINITY : (double) possible.size())) {
        refuse("maxProperties", "is below the number of properties that there can be: check the answer instead");
    }
    schema.erase("minProperties");
    schema.erase("maxProperties");
    schema["properties"]           = possible;
    schema["additionalProperties"] = is_open ? more : json(false);
}

// One schema for each type that it is for.
static std::vector<json> split_types(const json & schema, const h2o_schema_resolver & resolve) {
    std::vector<std::string> types = types_of(schema);
    if (schema.contains("enum")) {
        return { enumeration(schema, types) };
    }
    if (types.empty()) {
        for (const auto & [type, keywords] : KEYWORDS) {
            for (const auto & keyword : keywords) {
                // a format without a rule says nothing
                if (schema.contains(keyword) && (keyword != "format" || has_rule(schema.at(keyword))) &&
                    !contains(types, type)) {
                    types.push_back(type);
                }
            }
        }
    }
    if (types.empty()) {
        return { json::object() };
    }
    std::vector<json> result;
    std::string       why;
    for (const auto & type : types) {
        json one = json::object();
        one["type"] = type;
        for (const auto & keyword : keywords_of(type)) {
            if (schema.contains(keyword)) {
                one[keyword] = schema.at(keyword);
            }
        }
        try {
            if (type == "string") {
                simplify_string(one);
            } else if (type == "number" || type == "integer") {
                simplify_number(one, type);
            } else if (type == "array") {
                simplify_array(one);
            } else if (type == "object") {
                simplify_object(one, resolve);
            }
            result.push_back(one);
        } catch (const no_value & e) {
            why = e.what();
        }
    }
    if (result.empty()) {
        throw no_value(why);
    }
    return result;
}

common_json h2o_simplify_schema(const common_json & schema, const h2o_schema_resolver & resolve) {
    check_schema(schema);
    if (schema.is_boolean()) {
        return json::object();
    }
    if (schema.contains("$ref") && !schema.at("$ref").is_string()) {
        refuse("$ref", "must be a string");
    }
    // one of these alone is kept: $ref may be recursive
    std::vector<std::string> applicators;
    for (const std::string keyword : { "$ref", "allOf", "anyOf", "oneOf" }) {
        if (schema.contains(keyword)) {
            applicators.push_back(keyword);
        }
    }
    if (applicators.size() == 1 && assertions(schema).empty()) {
        const std::string & keyword = applicators[0];
        json result = json::object();
        if (keyword == "$ref") {
            result[keyword] = schema.at(keyword);
            return result;
        }
        json parts = json::array();
        for (const auto & part : alternatives(schema, keyword)) {
            const bool is_false = part.is_boolean() && !part.get<bool>();
            if (keyword == "allOf" ? !says_nothing(part) : !is_false) {
                parts.push_back(part);
            }
        }
        if (parts.size() == 1) {
            return h2o_simplify_schema(parts.at(0), resolve);
        }
        if (keyword != "allOf" && !parts.empty()) {
            result["anyOf"] = parts;
            return result;
        }
    }
    json        any = json::array();
    std::string why;
    for (const auto & alternative : flatten(schema, resolve)) {
        try {
            for (const auto & one : split_types(alternative, resolve)) {
                any.push_back(one);
            }
        } catch (const no_value & e) {
            why = e.what();
        }
    }
    if (any.empty()) {
        throw no_value(why);
    }
    if (any.size() == 1) {
        return any.at(0);
    }
    json result = json::object();
    result["anyOf"] = any;
    return result;
}

std::string h2o_rule_name(const std::string & name) {
    std::string result;
    bool was_other = false;
    for (const char c : name) {
        const bool is_other = !(('0' <= c && c <= '9') || ('A' <= c && c <= 'Z') || ('a' <= c && c <= 'z') || c == '-');
        if (!is_other) {
            result += c;
        } else if (!was_other) {
            result += '-';
        }
        was_other = is_other;
    }
    return result;
}

const common_json & h2o_resolve_pointer(const common_json & document, const std::string & ref) {
    if (ref != "#" && ref.compare(0, 2, "#/") != 0) {
        throw std::invalid_argument(
            "unsupported $ref " + ref + ", only references into the same document are supported");
    }
    const auto fail = [&](const std::string & why) {
        throw std::invalid_argument("cannot resolve $ref " + ref + ", " + why);
    };

    const json * target = &document;
    for (size_t begin = 1; begin < ref.size();) {
        const size_t end = std::min(ref.find('/', begin + 1), ref.size());
        std::string name;
        for (size_t i = begin + 1; i < end; i++) {
            if (ref[i] == '~' && i + 1 < end && (ref[i + 1] == '0' || ref[i + 1] == '1')) {
                name += ref[++i] == '0' ? '~' : '/';
            } else if (ref[i] == '%' && i + 2 < end && isxdigit((unsigned char) ref[i + 1]) &&
                isxdigit((unsigned char) ref[i + 2])) {
                name += (char) std::stoi(ref.substr(i + 1, 2), nullptr, 16);
                i += 2;
            } else {
                name += ref[i];
            }
        }
        if (target->is_object() && target->contains(name)) {
            target = &target->at(name);
        } else if (target->is_array() && !name.empty() && name.size() < 10 &&
            name.find_first_not_of("0123456789") == std::string::npos) {
            const size_t i = std::stoul(name);
            if (i >= target->size()) {
                fail(name + " is out of range");
            }
            target = &target->at(i);
        } else {
            fail(name + " not found");
        }
        begin = end;
    }
    return *target;
}
