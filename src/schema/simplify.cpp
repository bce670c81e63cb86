#include "schema/simplify.h"

#include "schema/number-range.h"
#include "schema/pattern.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <vector>

using json = common_json;

static constexpr int MAX_PARTS = 20000;
static constexpr int MAX_DEPTH = 100;

static const std::vector<std::string> TYPES = { "null", "boolean", "object", "array", "number", "integer", "string" };

// keywords that apply to values of one type, whatever "type" says
static const std::vector<std::pair<std::string, std::vector<std::string>>> KEYWORDS = {
    { "object", { "properties", "required", "additionalProperties", "unevaluatedProperties" } },
    { "array", { "items", "prefixItems", "minItems", "maxItems", "uniqueItems" } },
    { "number", { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum" } },
    { "string", { "pattern", "minLength", "maxLength", "format" } },
};

static const std::vector<std::string> UNSUPPORTED = { "not", "if", "$dynamicRef", "$recursiveRef", "multipleOf",
    "contains", "unevaluatedItems", "minProperties", "maxProperties", "propertyNames", "patternProperties",
    "dependentRequired", "dependentSchemas", "dependencies" };

// No value fits: such an alternative is left out.
struct no_value : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

[[noreturn]] static void refuse(const std::string & keyword, const std::string & why) {
    throw std::invalid_argument("\"" + keyword + "\" " + why);
}

static bool contains(const std::vector<std::string> & list, const std::string & what) {
    return std::find(list.begin(), list.end(), what) != list.end();
}

// the keywords for values of a type, or none
static const std::vector<std::string> & keywords_of(const std::string & type) {
    static const std::vector<std::string> none;
    for (const auto & [group, keywords] : KEYWORDS) {
        if (group == (type == "integer" ? "number" : type)) {
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

static bool is(const json & schema, const std::string & keyword, bool value) {
    return schema.contains(keyword) && schema.at(keyword) == value;
}

static void check_schema(const json & schema) {
    if (!schema.is_object() && !schema.is_boolean()) {
        throw std::invalid_argument("schema must be an object");
    }
    if (schema == false) {
        throw no_value("false admits no value");
    }
}

static const json & list_of(const json & schema, const std::string & keyword) {
    const json & list = schema.at(keyword);
    if (!list.is_array() || list.empty()) {
        refuse(keyword, "must be a non-empty array");
    }
    return list;
}

// --- merging: both schemas hold. They have no $ref, allOf, anyOf, oneOf, const

static json merged_types(const json & a, const json & b) {
    json types = json::array();
    const auto of_a = types_of(a);
    const auto of_b = types_of(b);
    for (const auto & type : TYPES) {
        if (includes(of_a, type) && includes(of_b, type) && (contains(of_a, type) || contains(of_b, type))) {
            types.push_back(type);
        }
    }
    return types;
}

static json merged_values(const json & a, const json & b) {
    json values = json::array();
    for (const auto & one : list_of(a, "enum")) {
        for (const auto & other : list_of(b, "enum")) {
            if (one == other) {
                values.push_back(one);
                break;
            }
        }
    }
    return values;
}

// additionalProperties of one schema also apply to the properties of the other.
static void check_closed(const json & schema, const json & other) {
    if (schema.contains("additionalProperties") && !is(schema, "additionalProperties", true) &&
        other.contains("properties") && other.at("properties") != schema.value("properties", json())) {
        refuse("additionalProperties", "cannot be combined with the properties of another schema");
    }
}

static json merged(const json & a, const json & b) {
    json result = a;
    for (const auto & [keyword, value] : b.items()) {
        if (!a.contains(keyword) || a.at(keyword) == value) {
            result[keyword] = value;
            continue;
        }
        const json & own = a.at(keyword);
        if (keyword == "type" || keyword == "enum") {
            result[keyword] = keyword == "type" ? merged_types(a, b) : merged_values(a, b);
            if (result.at(keyword).empty()) {
                throw no_value("\"" + keyword + "\" excludes everything");
            }
        } else if (keyword == "required" && own.is_array() && value.is_array()) {
            for (const auto & name : value) {
                result[keyword].push_back(name);
            }
        } else if (keyword == "properties" && own.is_object() && value.is_object()) {
            for (const auto & [name, schema] : value.items()) {
                json both = json::object();
                both["allOf"] = json::array({ own.contains(name) ? own.at(name) : json(true), schema });
                result[keyword][name] = own.contains(name) && own.at(name) != schema ? both : schema;
            }
        } else {
            refuse(keyword, "holds twice, with different values: a grammar cannot say both");
        }
    }
    check_closed(a, b);
    check_closed(b, a);
    return result;
}

static bool is_assertion(const std::string & keyword) {
    return keyword == "type" || keyword == "enum" || keyword == "const" || contains(UNSUPPORTED, keyword) ||
        std::any_of(KEYWORDS.begin(), KEYWORDS.end(), [&](const auto & group) {
            return contains(group.second, keyword);
        });
}

// What says something about values in a schema, but for $ref, allOf, anyOf and oneOf.
static json assertions(const json & schema) {
    for (const auto & keyword : UNSUPPORTED) {
        if (schema.contains(keyword)) {
            refuse(keyword, "is nothing that a grammar can say: leave it out, and check the answer instead");
        }
    }
    json result = json::object();
    for (const auto & [keyword, value] : schema.items()) {
        if (is_assertion(keyword) && keyword != "const") {
            result[keyword] = value;
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
    if (schema.contains("const")) {
        json constant = json::object();
        constant["enum"] = json::array({ schema.at("const") });
        result = merged(result, constant);
    }
    return result;
}

namespace {

// What holds for all values of a schema.
class conjunction {
public:
    json              all = json::object(); // assertions
    std::vector<json> any;                  // lists of schemas: one of each holds

    conjunction(h2o_schema_document & document, const json & schema) : document(document) { add(schema, 0); }

private:
    h2o_schema_document & document;

    void add(const json & schema, int depth) {
        if (depth > MAX_DEPTH) {
            refuse("$ref", "leads to itself, or schemas are nested too deeply");
        }
        document.count(schema);
        check_schema(schema);
        if (schema.is_boolean()) {
            return;
        }
        all = merged(all, assertions(schema));
        if (schema.contains("$ref")) {
            add(h2o_resolve_pointer(document.root, schema.at("$ref")), depth + 1);
        }
        if (schema.contains("allOf")) {
            for (const auto & part : list_of(schema, "allOf")) {
                add(part, depth + 1);
            }
        }
        for (const std::string keyword : { "anyOf", "oneOf" }) {
            if (schema.contains(keyword)) {
                any.push_back(list_of(schema, keyword));
            }
        }
    }
};

} // namespace

// --- one type with its keywords

// The values of an enum that are of the schema's types.
static json enumeration(const json & schema) {
    const auto types = types_of(schema);
    json values = json::array();
    for (const auto & value : list_of(schema, "enum")) {
        const std::string type = type_of(value);
        if (!types.empty() && !includes(types, type)) {
            continue;
        }
        for (const auto & keyword : keywords_of(type)) {
            if (schema.contains(keyword) && keyword != "format" && keyword != "uniqueItems") {
                refuse(keyword, "cannot be combined with enum or const: leave out the values that it excludes, and the "
                    "keyword");
            }
        }
        values.push_back(value);
    }
    if (values.empty()) {
        throw no_value("no value of \"enum\" or \"const\" has the right type");
    }
    json result = json::object();
    result["enum"] = values;
    return result;
}

// A keyword that counts, as an int.
static int count_of(json & schema, const std::string & keyword, int if_missing) {
    if (!schema.contains(keyword)) {
        return if_missing;
    }
    const json count = schema.at(keyword);
    if (!is_integer(count) || count.get<double>() < 0) {
        refuse(keyword, "must be a non-negative integer");
    }
    const int result = (int) std::min(count.get<double>(), (double) INT_MAX);
    schema[keyword] = result;
    return result;
}

static void check_counts(json & schema, const std::string & min, const std::string & max) {
    if (count_of(schema, min, 0) > count_of(schema, max, INT_MAX)) {
        throw no_value("\"" + min + "\" is above \"" + max + "\"");
    }
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
    for (const std::string keyword : { "pattern", "format" }) {
        if (schema.contains(keyword) && (count_of(schema, "minLength", 0) > 0 || schema.contains("maxLength"))) {
            refuse(keyword, "cannot be combined with minLength and maxLength: leave them out");
        }
    }
    if (schema.contains("pattern")) {
        if (!schema.at("pattern").is_string()) {
            refuse("pattern", "must be a string");
        }
        const std::string pattern = schema.at("pattern");
        try {
            schema["pattern"] = h2o_pattern_to_gbnf(pattern, "char");
        } catch (const std::invalid_argument & e) {
            throw std::invalid_argument("pattern " + pattern + " cannot be kept: " + e.what());
        }
    }
}

static std::optional<h2o_number_bound> bound_of(json & schema, const std::string & open, const std::string & closed) {
    const bool is_exclusive = schema.contains(closed);
    if (!is_exclusive && !schema.contains(open)) {
        return std::nullopt;
    }
    if (is_exclusive && schema.contains(open)) {
        refuse(open, "cannot be combined with " + closed);
    }
    const std::string keyword = is_exclusive ? closed : open;
    if (!schema.at(keyword).is_number()) {
        refuse(keyword, "must be a number");
    }
    const std::string number = schema.at(keyword).dump();
    schema.erase(keyword);
    return h2o_number_bound { number, is_exclusive };
}

static void simplify_number(json & schema, bool is_integer) {
    const auto min = bound_of(schema, "minimum", "exclusiveMinimum");
    const auto max = bound_of(schema, "maximum", "exclusiveMaximum");
    if (min || max) {
        schema["range"] = h2o_number_range_to_gbnf(min, max, is_integer);
        if (schema.at("range") == "") {
            throw no_value("no number of at most 16 digits is within its bounds");
        }
    }
}

static void simplify_array(json & schema) {
    check_counts(schema, "minItems", "maxItems");
    const json prefix    = schema.value("prefixItems", json::array());
    const bool is_closed = is(schema, "items", false);
    if (!prefix.is_array()) {
        refuse("prefixItems", "must be an array of schemas");
    }
    if (prefix.empty() && !is_closed) {
        schema.erase("prefixItems");
        return;
    }
    if (schema.contains("items") && !is_closed) {
        refuse("items", "cannot be combined with prefixItems, unless it is false");
    }
    const int n = (int) prefix.size();
    if (count_of(schema, "minItems", 0) > n || count_of(schema, "maxItems", INT_MAX) < n) {
        throw no_value("\"minItems\" or \"maxItems\" excludes the number of items that there are schemas for");
    }
    schema = { { "type", "array" }, { "maxItems", n } };
    if (n > 0) {
        schema["prefixItems"] = prefix;
    }
}

static void simplify_object(json & schema) {
    if (schema.contains("unevaluatedProperties") && !schema.contains("additionalProperties")) {
        schema["additionalProperties"] = schema.at("unevaluatedProperties");
    }
    schema.erase("unevaluatedProperties");
    json       properties = schema.value("properties", json::object());
    const json more       = schema.value("additionalProperties", json(properties.empty()));
    const json required   = schema.value("required", json::array());
    if (!properties.is_object()) {
        refuse("properties", "must be an object");
    }
    if (!more.is_boolean() && !more.is_object()) {
        refuse("additionalProperties", "must be a boolean or a schema");
    }
    if (!required.is_array()) {
        refuse("required", "must be an array of strings");
    }
    for (const auto & name : required) {
        if (!name.is_string()) {
            refuse("required", "must be an array of strings");
        }
        if (!properties.contains(name)) {
            if (is(schema, "additionalProperties", false)) {
                throw no_value("\"required\" has a property that \"additionalProperties\" forbids: " + name.dump());
            }
            properties[name] = more == false ? json(true) : more;
        }
    }
    if (more != false && properties.contains("*")) {
        refuse("properties", "cannot have the name * next to additionalProperties");
    }
    schema["properties"]           = properties;
    schema["additionalProperties"] = more;
}

// The types of a schema: named by "type", else the types that its keywords are about.
static std::vector<std::string> types_for(const json & schema) {
    std::vector<std::string> types = types_of(schema);
    if (!schema.contains("type")) {
        for (const auto & [type, keywords] : KEYWORDS) {
            const bool is_about = std::any_of(keywords.begin(), keywords.end(), [&](const auto & keyword) {
                // a format without a rule says nothing
                return schema.contains(keyword) && (keyword != "format" || has_rule(schema.at(keyword)));
            });
            if (is_about) {
                types.push_back(type);
            }
        }
    }
    return types;
}

static json one_type(const json & schema, const std::string & type) {
    json result = { { "type", type } };
    for (const auto & keyword : keywords_of(type)) {
        if (schema.contains(keyword)) {
            result[keyword] = schema.at(keyword);
        }
    }
    if (type == "string") {
        simplify_string(result);
    } else if (type == "number" || type == "integer") {
        simplify_number(result, type == "integer");
    } else if (type == "array") {
        simplify_array(result);
    } else if (type == "object") {
        simplify_object(result);
    }
    return result;
}

// The keyword that alone says something about values: "$ref", "allOf", "anyOf" or "oneOf". Empty if more does.
static std::string only_applicator(const json & schema) {
    std::string result;
    for (const auto & [keyword, value] : schema.items()) {
        const bool is_applicator = keyword == "$ref" || keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf";
        if (is_assertion(keyword) || (is_applicator && !result.empty())) {
            return "";
        }
        result = is_applicator ? keyword : result;
    }
    return result;
}

// Without the lists of one schema around it. May be a $ref, which may be recursive.
static const json & unwrapped(const json & schema) {
    const std::string keyword = schema.is_object() ? only_applicator(schema) : "";
    if (keyword.empty() || keyword == "$ref" || list_of(schema, keyword).size() > 1) {
        return schema;
    }
    return unwrapped(schema.at(keyword).at(0));
}

static json simplified(const json & wrapped, h2o_schema_document & document) {
    const json & schema = unwrapped(wrapped);
    check_schema(schema);
    if (schema.is_boolean()) {
        return json::object();
    }
    const std::string keyword = only_applicator(schema);
    if (keyword == "$ref") {
        return { { keyword, schema.at(keyword) } };
    }
    json        any = json::array();
    std::string why;
    const auto add = [&](const auto & make) {
        try {
            any.push_back(make());
        } catch (const no_value & e) {
            why = e.what();
        }
    };

    const conjunction all(document, schema);
    if (!all.any.empty()) {
        // each alternative of the first list with all the rest; an alternative without values is left out
        for (const auto & one : all.any[0]) {
            json parts = json::array({ one });
            if (!all.all.empty()) {
                parts.push_back(all.all);
            }
            for (size_t i = 1; i < all.any.size(); i++) {
                parts.push_back({ { "anyOf", all.any[i] } });
            }
            add([&] {
                const json part = { { "allOf", parts } };
                if (parts.size() > 1 || one == false) {
                    simplified(part, document);
                }
                return parts.size() > 1 ? part : one;
            });
        }
    } else if (all.all.contains("enum")) {
        return enumeration(all.all);
    } else {
        const auto types = types_for(all.all);
        if (types.empty()) {
            return json::object();
        }
        if (types.size() == 1) {
            return one_type(all.all, types[0]);
        }
        for (const auto & type : types) {
            json part = all.all;
            part["type"] = type;
            add([&] {
                one_type(part, type);
                return part;
            });
        }
    }
    if (any.empty()) {
        throw no_value(why);
    }
    return any.size() == 1 ? simplified(any.at(0), document) : json { { "anyOf", any } };
}

static int n_values(const json & value) {
    int n = 1;
    if (value.is_object() || value.is_array()) {
        for (const auto & inner : value) {
            n += n_values(inner);
        }
    }
    return n;
}

void h2o_schema_document::count(const json & schema) {
    n_parts += 1 + n_values(schema)/16; // which are copied
    if (n_parts > MAX_PARTS) {
        throw std::invalid_argument("the schema has too many parts, or combinations of anyOf");
    }
}

h2o_schema_part::h2o_schema_part(h2o_schema_document & document, const common_json & given, const std::string & path)
    : document(document) {
    try {
        read(given);
    } catch (const std::invalid_argument & e) {
        throw std::invalid_argument("JSON schema error at " + path + ": " + e.what());
    }
}

void h2o_schema_part::read(const common_json & given) {
    document.count(given);
    if (++document.depth > MAX_DEPTH) {
        throw std::invalid_argument("schemas are nested too deeply");
    }
    const json * target = &unwrapped(given);
    for (int i = 0; target->is_object() && only_applicator(*target) == "$ref"; i++) {
        if (i > MAX_DEPTH) {
            refuse("$ref", "leads only to itself, or is nested too deeply");
        }
        target = &unwrapped(h2o_resolve_pointer(document.root, target->at("$ref")));
    }
    schema = simplified(given, document);
}

h2o_schema_part::~h2o_schema_part() { document.depth--; }

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

const common_json & h2o_resolve_pointer(const common_json & document, const common_json & given) {
    if (!given.is_string()) {
        refuse("$ref", "must be a string");
    }
    const std::string ref = given;
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
