#include "schema/simplify.h"

#include "schema/number-range.h"
#include "schema/pattern.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

using json    = common_json;
using strings = std::vector<std::string>;

static constexpr size_t MAX_PARTS    = 20000; // each as often as a $ref next to other keywords repeats it
static constexpr int    MAX_DEPTH    = 100;
static constexpr size_t MAX_NAME     = 190; // bytes of a property's name: each may open a parenthesis
static constexpr size_t MAX_OPTIONAL = 256; // properties of an object: upstream takes the cube of their number

// keywords that apply to values of one type, whatever "type" says
static const std::map<std::string, strings> KEYWORDS = {
    { "object",
        { "properties", "required", "additionalProperties", "propertyNames", "unevaluatedProperties" } },
    { "array", { "items", "prefixItems", "minItems", "maxItems" } },
    { "number", { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum" } },
    { "string", { "pattern", "minLength", "maxLength", "format" } },
};

static const std::string DEFS = "#/$defs/";

static const strings UNSUPPORTED = { "not", "if", "$dynamicRef", "$recursiveRef", "multipleOf", "contains",
    "unevaluatedItems", "minProperties", "maxProperties", "patternProperties", "dependentRequired", "dependentSchemas",
    "dependencies", "disallow", "divisibleBy", "extends" };

static const strings FORMATS = { "date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5" };

[[noreturn]] static void refuse(const std::string & keyword, const std::string & why) {
    throw std::invalid_argument("\"" + keyword + "\" " + why);
}

static void check(bool is_right, const std::string & keyword, const std::string & why) {
    if (!is_right) {
        refuse(keyword, why);
    }
}

static bool contains(const strings & list, const std::string & what) {
    return std::find(list.begin(), list.end(), what) != list.end();
}

// the type that a keyword is about; empty if it is about values of all types, or unknown
static std::string type_for(const std::string & keyword) {
    for (const auto & [type, keywords] : KEYWORDS) {
        if (contains(keywords, keyword)) {
            return type;
        }
    }
    return "";
}

static bool is_integer(const json & value) {
    return value.is_number_integer() || (value.is_number() && std::trunc(value.get<double>()) == value.get<double>());
}

static bool is_of_type(const json & value, const std::string & type) {
    return type == "null" ? value.is_null() : type == "boolean" ? value.is_boolean() :
        type == "object" ? value.is_object() : type == "array" ? value.is_array() :
        type == "string" ? value.is_string() : type == "integer" ? is_integer(value) :
        type == "number" ? value.is_number() : throw std::invalid_argument("unrecognized type " + type);
}

static const json & list_of(const json & schema, const std::string & keyword) {
    const json & list = schema.at(keyword);
    check(list.is_array() && !list.empty(), keyword, "must be a non-empty array");
    return list;
}

static strings strings_of(const json & list, const std::string & keyword) {
    check(list.is_array(), keyword, "must be an array of strings");
    strings result;
    for (const auto & one : list) {
        check(one.is_string(), keyword, "must be an array of strings");
        result.push_back(one.get<std::string>());
    }
    return result;
}

// "type" as a list; else the types that keywords of the schema are about.
static strings types_of(const json & schema) {
    strings result;
    if (schema.contains("type")) {
        const json & type = schema.at("type");
        result = type.is_string() ? strings { type.get<std::string>() } : strings_of(list_of(schema, "type"), "type");
    } else {
        for (const auto & [keyword, value] : schema.items()) {
            const std::string type = type_for(keyword);
            if (!type.empty() && !contains(result, type)) {
                result.push_back(type);
            }
        }
    }
    return result;
}

// Both schemas hold. They have assertions only.
static void merge(json & all, const json & more) {
    // additionalProperties of one are also about the properties of the other
    const auto check_closed = [](const json & schema, const json & other) {
        if (schema.value("additionalProperties", json(true)) == true) {
            return;
        }
        const json own = schema.value("properties", json::object()), others = other.value("properties", json::object());
        for (const auto & [name, value] : others.items()) {
            check(own.contains(name), "additionalProperties",
                "cannot be combined with properties of another schema: " + name);
        }
    };
    check_closed(all, more);
    check_closed(more, all);
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
            refuse(keyword, "holds twice, with different values: a grammar cannot say both");
        }
        all[keyword] = merged;
    }
}

// What says something about values in a schema, but for $ref, allOf, anyOf and oneOf.
static json assertions(const json & schema) {
    json result = json::object();
    for (const auto & [keyword, value] : schema.items()) {
        check(!contains(UNSUPPORTED, keyword), keyword,
            "is nothing that a grammar can say: leave it out, and check the answer instead");
        if (keyword == "type" || keyword == "enum" || !type_for(keyword).empty()) {
            result[keyword] = value;
        }
    }
    if (schema.contains("format") && !contains(FORMATS, schema.at("format"))) {
        result.erase("format");
    }
    if (schema.contains("const")) {
        merge(result, { { "enum", json::array({ schema.at("const") }) } });
    }
    // as drafts before 2020 have it
    if (schema.contains("items") && schema.at("items").is_array()) {
        result["prefixItems"] = schema.at("items");
        result.erase("items");
        if (schema.contains("additionalItems")) {
            result["items"] = schema.at("additionalItems");
        }
    }
    const json properties = schema.value("properties", json::object());
    check(properties.is_object(), "properties", "must be an object");
    strings_of(schema.value("required", json::array()), "required");
    return result;
}

// The $ref, allOf, anyOf or oneOf that alone says something about values. Empty if more does.
static std::string only_applicator(const json & schema) {
    std::string result;
    for (const auto & [keyword, value] : schema.items()) {
        const bool is_applicator = contains({ "$ref", "allOf", "anyOf", "oneOf" }, keyword);
        const bool is_assertion  = contains({ "type", "enum", "const" }, keyword) || !type_for(keyword).empty() ||
            contains(UNSUPPORTED, keyword);
        if (is_assertion || (is_applicator && !result.empty())) {
            return "";
        }
        result = is_applicator ? keyword : result;
    }
    return result;
}

static const json & resolve(const json & root, const json & given) {
    const std::string ref = given.is_string() ? given.get<std::string>() : given.dump();
    check(ref == "#" || ref.compare(0, 2, "#/") == 0, "$ref", "must begin with #/, got " + ref);

    const json * target = &root;
    for (size_t begin = 1; begin < ref.size();) {
        const size_t end = std::min(ref.find('/', begin + 1), ref.size());
        std::string name;
        for (size_t i = begin + 1; i < end; i++) {
            if (ref[i] == '~' && i + 1 < end) {
                name += ref[++i] == '0' ? '~' : '/';
            } else if (ref[i] == '%' && i + 2 < end) {
                name += (char) std::strtol(ref.substr(i + 1, 2).c_str(), nullptr, 16);
                i += 2;
            } else {
                name += ref[i];
            }
        }
        const bool   is_number = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
        const size_t index     = is_number ? std::strtoul(name.c_str(), nullptr, 10) : SIZE_MAX;
        check(target->is_object() ? target->contains(name) : target->is_array() && index < target->size(), "$ref",
            "cannot be resolved: " + ref + ", there is no " + name);
        target = target->is_object() ? &target->at(name) : &target->at(index);
        begin  = end;
    }
    return *target;
}

// --- one type with its keywords

static int count_of(const json & schema, const std::string & keyword, int if_missing) {
    const json count = schema.value(keyword, json(if_missing));
    check(is_integer(count) && count.get<double>() >= 0, keyword, "must be a non-negative integer");
    return (int) std::min(count.get<double>(), (double) INT_MAX);
}

// "min" and "max" where they say something
static void add_counts(json & result, const json & schema, const std::string & min, const std::string & max) {
    const int least = count_of(schema, min, 0), most = count_of(schema, max, INT_MAX);
    check(least <= most, min, "is above \"" + max + "\"");
    result[min] = least;
    if (most < INT_MAX) {
        result[max] = most;
    }
}

static void add_string(json & result, const json & schema) {
    add_counts(result, schema, "minLength", "maxLength");
    for (const std::string keyword : { "pattern", "format" }) {
        check(!schema.contains(keyword) || (!schema.contains("minLength") && !schema.contains("maxLength")), keyword,
            "cannot be combined with minLength and maxLength: leave them out");
    }
    if (schema.contains("pattern")) {
        check(schema.at("pattern").is_string(), "pattern", "must be a string");
        result["gbnf"] = h2o_pattern_to_gbnf(schema.at("pattern"));
    } else if (schema.contains("format")) {
        result["format"] = schema.at("format");
    }
}

// The values of an enum that are of the schema's types.
static json enumeration(const json & schema) {
    for (const auto & [keyword, value] : schema.items()) {
        check(keyword == "type" || keyword == "enum" || keyword == "format", keyword,
            "cannot be combined with enum or const: leave out the values that it excludes, and the keyword");
    }
    const strings types = types_of(schema);
    json          values = json::array();
    strings       texts;
    for (const auto & value : list_of(schema, "enum")) {
        const auto has = [&](const std::string & type) { return is_of_type(value, type); };
        if (!schema.contains("type") || std::any_of(types.begin(), types.end(), has)) {
            values.push_back(value);
            texts.push_back(value.dump());
        }
    }
    check(!values.empty(), "enum", "or \"const\" has no value of the type that \"type\" names");
    return { { "enum", values }, { "gbnf", h2o_choice_to_gbnf(texts) } };
}

namespace {

struct error_with_place : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

class simplifier {
public:
    explicit simplifier(const json & root)
        : root(root), prefix(std::to_string(std::hash<std::string>()(root.dump_safe())) + "-") {}

    json read() {
        json result = part(root, "#");
        if (result.contains("$ref")) {
            result = defs.at(result.value("$ref", "").substr(DEFS.size()));
        }
        result["$defs"] = json::object();
        for (const auto & [name, schema] : defs) {
            result["$defs"][name] = schema;
        }
        return result;
    }

private:
    const json &                        root;
    const std::string                   prefix; // of names in $defs: a grammar is made of several schemas
    std::map<const json *, std::string> names;  // of what $refs name
    std::map<std::string, json>         defs;
    size_t n_parts = 0;
    int    depth   = 0;

    void count(const json & schema, size_t n_copied = 0) {
        n_parts += 1 + schema.size() + n_copied;
        check(n_parts < MAX_PARTS, "anyOf", "or another list has too many parts, or combinations");
        check(schema.is_object() || schema == true, "schema",
            "must be an object, or true, got " + schema.dump_safe().substr(0, 40));
    }

    // What a chain of $refs alone leads to.
    const json & followed(const json & schema) const {
        const json * target = &schema;
        for (int i = 0; target->is_object(); i++) {
            const std::string keyword = only_applicator(*target);
            check(i < MAX_DEPTH, "$ref", "leads only to itself, or is nested too deeply");
            if (keyword == "$ref") {
                target = &resolve(root, target->at("$ref"));
            } else if (keyword == "allOf" && list_of(*target, "allOf").size() == 1) {
                target = &target->at("allOf").at(0);
            } else {
                break;
            }
        }
        return *target;
    }

    json part(const json & schema, const std::string & path) {
        try {
            count(schema);
            check(++depth < MAX_DEPTH, "$ref", "or schemas are nested too deeply");
            const std::string keyword = schema == true ? "" : only_applicator(schema);
            const bool is_list_of_one = keyword == "allOf" && list_of(schema, "allOf").size() == 1;
            const json result = schema == true ? json::object() : keyword == "$ref" ? reference(schema) :
                is_list_of_one ? part(schema.at("allOf").at(0), path + "/allOf/0") : combined(schema, path);
            depth--;
            return result;
        } catch (const error_with_place &) {
            throw;
        } catch (const std::exception & e) {
            throw error_with_place("JSON schema error at " + path + ": " + e.what());
        }
    }

    json reference(const json & schema) {
        const json & target = followed(schema);
        const auto [named, is_new] = names.emplace(&target, prefix + std::to_string(names.size()));
        const std::string name = named->second;
        if (is_new) {
            defs[name] = part(target, schema.at("$ref"));
        }
        return { { "$ref", DEFS + name } };
    }

    // Assertions hold together, and one of the alternatives.
    void add(const json & schema, json & all, const json *& alternatives, int n_inside) {
        count(schema, n_inside > 0 ? all.dump_safe().size()/64 : 0);
        check(n_inside < MAX_DEPTH, "$ref", "leads to itself, or schemas are nested too deeply");
        if (schema == true) {
            return;
        }
        check(n_inside == 0 || !schema.contains("unevaluatedProperties"), "unevaluatedProperties",
            "cannot be combined with another schema");
        merge(all, assertions(schema));
        if (schema.contains("$ref")) {
            add(resolve(root, schema.at("$ref")), all, alternatives, n_inside + 1);
        }
        if (schema.contains("allOf")) {
            for (const auto & one : list_of(schema, "allOf")) {
                add(one, all, alternatives, n_inside + 1);
            }
        }
        for (const std::string keyword : { "anyOf", "oneOf" }) {
            if (schema.contains(keyword)) {
                check(!alternatives, keyword, "cannot be combined with another anyOf or oneOf");
                alternatives = &list_of(schema, keyword);
            }
        }
    }

    json combined(const json & schema, const std::string & path) {
        json         all          = json::object();
        const json * alternatives = nullptr;
        add(schema, all, alternatives, 0);

        json any = json::array();
        if (alternatives) {
            const size_t n_copied = all.dump_safe().size()/64;
            for (const auto & one : *alternatives) {
                count(true, n_copied);
                const json both = { { "allOf", json::array({ all, one }) } };
                any.push_back(part(all.empty() ? one : both, path + "/" + std::to_string(any.size())));
            }
            return { { "anyOf", any } };
        }
        if (all.contains("enum")) {
            return enumeration(all);
        }
        for (const auto & type : types_of(all)) {
            is_of_type(all, type); // throws if there is none of this name
            json result = { { "type", type } };
            if (type == "string") {
                add_string(result, all);
            } else if (type == "number" || type == "integer") {
                result["gbnf"] = h2o_number_range_to_gbnf(all, type == "integer");
            } else if (type == "array") {
                add_items(result, all, path);
            } else if (type == "object") {
                add_properties(result, all, path);
            }
            any.push_back(result);
        }
        return any.empty() ? json::object() : any.size() == 1 ? any.at(0) : json { { "anyOf", any } };
    }

    void add_items(json & result, const json & schema, const std::string & path) {
        const json tuple = schema.value("prefixItems", json::array()), items = schema.value("items", json(true));
        const int  n     = (int) tuple.size();
        check(tuple.is_array(), "prefixItems", "must be an array of schemas");
        add_counts(result, schema, "minItems", "maxItems");
        if (n == 0 && items != false) {
            result["items"] = part(items, path + "/items");
            return;
        }
        check(!schema.contains("items") || items == false, "items",
            "cannot be combined with prefixItems, unless it is false");
        check(count_of(schema, "minItems", n) <= n && count_of(schema, "maxItems", n) >= n, "prefixItems",
            "has another number of schemas than \"minItems\" and \"maxItems\" admit");
        result["maxItems"] = n;
        json parts = json::array();
        for (int i = 0; i < n; i++) {
            parts.push_back(part(tuple.at(i), path + "/prefixItems/" + std::to_string(i)));
        }
        if (n > 0) {
            result["prefixItems"] = std::move(parts);
        }
    }

    void add_properties(json & result, const json & schema, const std::string & path) {
        json    properties = schema.value("properties", json::object());
        json    more       = schema.value("additionalProperties", schema.value("unevaluatedProperties", json()));
        bool    is_closed  = more == false;
        strings required   = strings_of(schema.value("required", json::array()), "required");
        more = more.is_null() ? json(properties.empty()) : more;
        check(more.is_boolean() || more.is_object(), "additionalProperties", "must be a boolean or a schema");

        std::string names_gbnf; // of additionalProperties
        if (schema.contains("propertyNames")) {
            const json given = part(followed(schema.at("propertyNames")), path + "/propertyNames");
            is_closed  = given.contains("enum");
            names_gbnf = is_closed ? "" : given.value("gbnf", "");
            check(properties.empty() && (is_closed || (!names_gbnf.empty() && required.empty())), "propertyNames",
                "must be an enum, or a pattern without \"required\", and cannot be combined with properties");
            for (const auto & name : is_closed ? strings_of(given.at("enum"), "propertyNames") : strings {}) {
                properties[name] = more;
            }
            more = is_closed ? json(false) : more;
        }
        for (const auto & name : required) {
            if (!properties.contains(name)) {
                check(!is_closed, "required", "has a property that is not admitted: " + name);
                properties[name] = more == false ? json(true) : more;
            }
        }
        std::sort(required.begin(), required.end());
        size_t  n_optional = 0;
        strings all;
        result["properties"] = json::object();
        for (const auto & [name, value] : properties.items()) {
            check(name.size() <= MAX_NAME && (name != "*" || more == false), "properties",
                "cannot have the name * next to additionalProperties, or names of more than 190 bytes");
            n_optional += !std::binary_search(required.begin(), required.end(), name);
            check(n_optional <= MAX_OPTIONAL, "properties", "cannot have more than 256 that are not required");
            result["properties"][name] = part(value, path + "/properties/" + name);
            all.push_back(name);
        }
        count(true, n_optional*n_optional/64);
        result["required"]             = required;
        result["additionalProperties"] = more;
        if (more != false) {
            const json value = part(more, path + "/additionalProperties");
            names_gbnf = all.empty() ? names_gbnf : h2o_other_strings_to_gbnf(all);
            result["additionalProperties"] = names_gbnf.empty() ? value :
                json { { "anyOf", json::array({ value }) }, { "names", names_gbnf } };
        }
    }
};

} // namespace

common_json h2o_simplified_schema(const common_json & schema) { return simplifier(schema).read(); }
