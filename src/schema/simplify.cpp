#include "schema/simplify.h"

#include "schema/assertions.h"
#include "schema/number-range.h"
#include "schema/pattern.h"

#include "common.h"

#include <algorithm>
#include <climits>
#include <functional>
#include <map>
#include <string>
#include <vector>

using namespace h2o_schema;

using json    = common_json;
using strings = std::vector<std::string>;

static constexpr size_t MAX_PARTS    = 20000; // each as often as a $ref next to other keywords repeats it
static constexpr int    MAX_DEPTH    = 100;
static constexpr size_t MAX_NAME     = 190; // bytes of a property's name: each may open a parenthesis
static constexpr size_t MAX_OPTIONAL = 256; // properties of an object: upstream takes the cube of their number

static const std::string DEFS = "#/$defs/";

static const json NOTHING = { { "not", json::object() } }; // as zod writes an alternative that no value is of

static const json & resolve(const json & root, const json & given) {
    const std::string ref = given.is_string() ? given.get<std::string>() : given.dump_safe();
    check(ref == "#" || ref.compare(0, 2, "#/") == 0, "$ref", "must begin with #/, got " + ref);

    const json * target = &root;
    for (size_t begin = 2, end; begin <= ref.size(); begin = end + 1) {
        end = std::min(ref.find('/', begin), ref.size());
        std::string name = ref.substr(begin, end - begin);
        for (size_t i = name.find('%'); i < name.size(); i = name.find('%', i + 1)) {
            name.replace(i, 3, 1, (char) std::strtol(name.substr(i + 1, 2).c_str(), nullptr, 16));
        }
        string_replace_all(name, "~1", "/");
        string_replace_all(name, "~0", "~");
        const bool   is_number = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
        const size_t index     = is_number ? std::strtoul(name.c_str(), nullptr, 10) : SIZE_MAX;
        check(target->is_object() ? target->contains(name) : target->is_array() && index < target->size(), "$ref",
            "cannot be resolved: " + ref + ", there is no " + name);
        target = target->is_object() ? &target->at(name) : &target->at(index);
    }
    return *target;
}

// --- one type with its keywords

static void add_counts(json & result, const json & schema, const std::string & min, const std::string & max) {
    for (const std::string & keyword : { min, max }) {
        const json count = schema.value(keyword, json(0));
        check(is_integer(count) && count.get<double>() >= 0, keyword, "must be a non-negative integer");
        check(keyword == max || count.get<double>() <= 2000, keyword, "must be at most 2,000");
        if (schema.contains(keyword) && (keyword == max || count != 0)) {
            result[keyword] = (int) std::min(count.get<double>(), (double) INT_MAX);
        }
    }
    check(result.value(min, 0) <= result.value(max, INT_MAX), min, "is above \"" + max + "\"");
}

static void add_string(json & result, const json & schema) {
    add_counts(result, schema, "minLength", "maxLength");
    for (const std::string keyword : { "pattern", "format" }) {
        check(!schema.contains(keyword) || result.size() == 1, keyword,
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
    const strings types  = types_of(schema);
    json          values = json::array();
    strings       texts;
    for (const auto & value : list_of(schema, "enum")) {
        const auto has = [&](const std::string & type) { return is_of_type(value, type); };
        if (!schema.contains("type") || std::any_of(types.begin(), types.end(), has)) {
            for (const auto & [keyword, more] : schema.items()) {
                const std::string & type = type_of_keyword(keyword);
                check(type.empty() || keyword == "format" || !has(type), keyword,
                    "cannot be combined with enum or const: leave out the values that it excludes, and the keyword");
            }
            values.push_back(value);
            texts.push_back(value.dump());
        }
    }
    check(!values.empty(), "enum", "or \"const\" has no value of the type that \"type\" names");
    return { { "enum", values }, { "gbnf", h2o_choice_to_gbnf(texts) } };
}

namespace {

class simplifier {
public:
    explicit simplifier(const json & root)
        : root(root), prefix(std::to_string(std::hash<std::string>()(root.dump_safe())) + "-") {}

    json read() {
        try {
            json result = followed(part(root, "#"));
            result["$defs"] = json::object();
            for (const auto & [name, schema] : defs) {
                result["$defs"][name] = schema;
            }
            return result;
        } catch (const std::exception & e) {
            const auto * known = dynamic_cast<const refusal *>(&e);
            throw refusal(known ? known->keyword : "", place, "JSON schema error at " + place + ": " + e.what());
        }
    }

private:
    const json &                        root;
    const std::string                   prefix; // of names in $defs: a grammar is made of several schemas
    std::map<const json *, std::string> names;  // of what $refs name
    std::map<std::string, json>         defs;   // by name
    std::string place; // of the schema that is read
    size_t n_parts = 0;
    int    depth   = 0;

    void count(const json & schema, size_t n_copied = 0) {
        n_parts += 1 + schema.size() + n_copied;
        check(n_parts < MAX_PARTS, "anyOf", "or another list has too many parts, or combinations");
        check(schema.is_object() || schema == true, "schema",
            "must be an object, or true, got " + schema.dump_safe().substr(0, 40));
    }

    // A schema that is below the present one, or that a $ref names.
    json part(const json & schema, const std::string & below) {
        const std::string outer = place;
        place = below[0] == '#' ? below : place + below;
        count(schema);
        check(++depth < MAX_DEPTH, "$ref", "or schemas are nested too deeply");
        const bool has_ref = schema.contains("$ref"), has_list = schema.contains("allOf");
        const bool is_one  = has_ref != has_list && assertions(schema).empty() &&
            (has_ref || list_of(schema, "allOf").size() == 1);
        const json result  = !is_one ? combined(schema) :
            has_ref ? reference(schema.at("$ref")) : part(schema.at("allOf").at(0), "/allOf/0");
        depth--;
        place = outer;
        return result;
    }

    json reference(const json & ref) {
        const json & target = resolve(root, ref);
        const auto [named, is_new] = names.emplace(&target, prefix + std::to_string(names.size()));
        const std::string name = named->second;
        if (is_new) {
            defs[name] = json::object(); // until it is known
            defs[name] = part(target, ref);
            followed(defs[name]);
        }
        return { { "$ref", DEFS + name } };
    }

    // What a chain of $refs leads to.
    const json & followed(const json & part) const {
        const json * result = &part;
        for (size_t i = 0; result->contains("$ref"); i++) {
            check(i < defs.size(), "$ref", "leads only to itself");
            result = &defs.at(result->value("$ref", "").substr(DEFS.size()));
        }
        return *result;
    }

    // Adds a schema that must hold, too.
    void add(const json & schema, json & all, int n_inside) {
        count(schema, n_inside > 0 ? all.dump_safe().size()/64 : 0);
        check(n_inside < MAX_DEPTH, "$ref", "leads to itself, or schemas are nested too deeply");
        check(n_inside == 0 || !schema.contains("unevaluatedProperties"), "unevaluatedProperties",
            "cannot be combined with another schema");
        merge(all, assertions(schema));
        if (schema.contains("$ref")) {
            add(resolve(root, schema.at("$ref")), all, n_inside + 1);
        }
        if (schema.contains("allOf")) {
            for (const auto & one : list_of(schema, "allOf")) {
                add(one, all, n_inside + 1);
            }
        }
    }

    json combined(const json & schema) {
        json all = json::object(), any = json::array();
        add(schema, all, 0);
        const std::string keyword = all.contains("oneOf") ? "oneOf" : "anyOf";
        if (all.contains(keyword)) {
            // each alternative, and what must hold with all of them
            const json list = list_of(all, keyword);
            all.erase(keyword);
            check(!all.contains("anyOf"), "anyOf", "cannot be combined with oneOf");
            const size_t n_copied = all.dump_safe().size()/64;
            for (size_t i = 0; i < list.size(); i++) {
                const json & one = list.at(i);
                count(true, n_copied);
                if (one == NOTHING) {
                    continue;
                }
                const json both = { { "allOf", json::array({ all, one }) } };
                any.push_back(part(all.empty() ? one : both, "/" + keyword + "/" + std::to_string(i)));
            }
            check(!any.empty(), keyword, "admits nothing");
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
                add_items(result, all);
            } else if (type == "object") {
                add_properties(result, all);
            }
            any.push_back(result);
        }
        return any.empty() ? json::object() : any.size() == 1 ? any.at(0) : json { { "anyOf", any } };
    }

    void add_items(json & result, const json & schema) {
        const json tuple = schema.value("prefixItems", json::array()), items = schema.value("items", json(true));
        const int  n     = (int) tuple.size();
        check(tuple.is_array(), "prefixItems", "must be an array of schemas");
        add_counts(result, schema, "minItems", "maxItems");
        if (n == 0 && items != false) {
            result["items"] = part(items, "/items");
            return;
        }
        check(!schema.contains("items") || items == false, "items",
            "cannot be combined with prefixItems, unless it is false");
        check(result.value("minItems", n) <= n && result.value("maxItems", n) >= n, "prefixItems",
            "has another number of schemas than \"minItems\" and \"maxItems\" admit");
        result["maxItems"] = n;
        for (int i = 0; i < n; i++) {
            result["prefixItems"].push_back(part(tuple.at(i), "/prefixItems/" + std::to_string(i)));
        }
    }

    void add_properties(json & result, const json & schema) {
        json    properties = schema.value("properties", json::object());
        json    more       = schema.value("additionalProperties", schema.value("unevaluatedProperties", json()));
        bool    is_closed  = more == false;
        strings required   = strings_of(schema, "required");
        more = more.is_null() ? json(properties.empty()) : more;
        check(more.is_boolean() || more.is_object(), "additionalProperties", "must be a boolean or a schema");

        std::string names_gbnf; // of additionalProperties
        const json given = followed(part(schema.value("propertyNames", json(true)), "/propertyNames"));
        if (given != json::object() && given != json { { "type", "string" } }) { // as every name is
            is_closed  = given.contains("enum");
            names_gbnf = is_closed ? "" : given.value("gbnf", "");
            check(properties.empty() && (is_closed || (!names_gbnf.empty() && required.empty())), "propertyNames",
                "must be an enum, or a pattern without \"required\", and cannot be combined with properties");
            for (const auto & name : is_closed ? strings_of(given, "enum") : strings {}) {
                properties[name] = more;
            }
            more = is_closed ? json(false) : more;
        }
        for (const auto & name : required) {
            check(!is_closed || properties.contains(name), "required", "has a property that is not admitted: " + name);
            properties[name] = properties.value(name, more == false ? json(true) : more);
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
            std::string below = name; // as a JSON pointer has it
            string_replace_all(below, "~", "~0");
            string_replace_all(below, "/", "~1");
            result["properties"][name] = part(value, "/properties/" + below);
            all.push_back(name);
        }
        count(true, n_optional*n_optional/64);
        result["required"]             = required;
        result["additionalProperties"] = more;
        if (more != false) {
            const json value = part(more, "/additionalProperties");
            names_gbnf = all.empty() ? names_gbnf : h2o_other_strings_to_gbnf(all);
            result["additionalProperties"] = names_gbnf.empty() ? value :
                json { { "anyOf", json::array({ value }) }, { "gbnf", names_gbnf } };
        }
    }
};

} // namespace

common_json h2o_simplified_schema(const common_json & schema) { return simplifier(schema).read(); }

// --- tools

static constexpr int MAX_LEFT_OUT = 100; // keywords of a tool: then its arguments are any object

// the schema at a place, or the one that it is merged into
static json & found(json & root, std::string place) {
    for (;; place.erase(place.rfind('/'))) {
        try {
            json & schema = const_cast<json &>(resolve(root, place));
            if (schema.is_object()) {
                return schema;
            }
        } catch (const refusal &) {
            // a $ref is on the way
        }
    }
}

common_json h2o_relaxed_schema(common_json schema, std::vector<std::string> * left_out) {
    for (int i = 0; i < MAX_LEFT_OUT; i++) {
        try {
            h2o_simplified_schema(schema);
            return schema;
        } catch (const refusal & e) {
            if (!schema.is_object()) {
                throw;
            }
            if (left_out) {
                left_out->push_back("\"" + e.keyword + "\" of " + e.place);
            }
            json & at = found(schema, e.place);
            const size_t n_before = at.size();
            const json   type     = &at == &schema ? json("object") : at.value("type", json());
            at.erase(e.keyword);
            if (at.size() == n_before) { // another schema says it
                at = type.is_null() ? json::object() : json { { "type", type } };
            }
        }
    }
    return { { "type", "object" } };
}
