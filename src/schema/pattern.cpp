#include "schema/pattern.h"

#include "schema/assertions.h"

#include "json.h"
#include "json-schema-to-grammar.h"
#include "trie.h"
#include "unicode.h"

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <map>
#include <regex>
#include <stdexcept>

static constexpr int MAX_DEPTH = 100; // of groups, or of choices: a grammar has at most 200 open parentheses

static const std::string NO_ESCAPE = "[^\"\\\\\\x00-\\x1F"; // begins a class of characters that JSON does not escape

static const std::map<char, std::string> CLASSES = { { 'd', "0-9" }, { 'w', "0-9A-Z_a-z" },
    { 's', " \\u00A0\\u1680\\u2000-\\u200A\\u2028\\u2029\\u202F\\u205F\\u3000\\uFEFF" } };

static void check(bool is_right, const std::string & what_is_wrong) {
    if (!is_right) {
        throw std::invalid_argument(what_is_wrong);
    }
}

static std::string literal(uint32_t c) {
    const std::string quoted = common_json(common_unicode_cpt_to_utf8(c)).dump();
    return gbnf_format_literal(quoted.substr(1, quoted.size() - 2));
}

static std::string in_class(uint32_t c) {
    char text[16];
    snprintf(text, sizeof(text), "\\U%08X", c);
    return text;
}

// --- patterns: each part of one at `at`, which moves behind it

static uint32_t character(const std::string & text, size_t & at) {
    const bool is_escaped = text[at] == '\\';
    const auto c = common_parse_utf8_codepoint(text, at + is_escaped);
    check(c.status == utf8_parse_result::SUCCESS, "it ends too early, or is not UTF-8");
    check(!is_escaped || c.codepoint >= 0x80 || !std::isalnum((int) c.codepoint),
        std::string("unsupported escape \\") + (char) c.codepoint);
    at += is_escaped + c.bytes_consumed;
    return c.codepoint;
}

static std::string character_class(const std::string & text, size_t & at) {
    const bool  is_negated = text.compare(at, 2, "[^") == 0;
    std::string result     = is_negated ? NO_ESCAPE : "[";
    for (at += 1 + is_negated; text.compare(at, 1, "]") != 0;) {
        const auto named = text.compare(at, 1, "\\") == 0 ? CLASSES.find(text[at + 1]) : CLASSES.end();
        if (named != CLASSES.end()) {
            result += named->second;
            at += 2;
            continue;
        }
        const uint32_t first = character(text, at);
        const bool     is_range = text.compare(at, 1, "-") == 0 && text.compare(at, 2, "-]") != 0;
        const uint32_t last = is_range ? character(text, ++at) : first;
        check(first <= last, "a range in a class is not from a character to a later one");
        for (const uint32_t escaped : { 0x1F, (int) '"', (int) '\\' }) {
            check(is_negated || last < escaped || escaped < first, "a class with \", \\ or control characters");
        }
        result += in_class(first) + "-" + in_class(last);
    }
    at++;
    check(result != "[", "an empty class");
    return result + "]";
}

// empty where there is none
static std::string repetition(const std::string & text, size_t & at) {
    static const std::regex FORM("([*+?]|\\{(\\d{1,4})(,(\\d{0,4}))?\\})\\??"); // lazy or not: the same texts
    const std::string rest = text.substr(at, 13);
    std::smatch       found;
    std::regex_search(rest, found, FORM, std::regex_constants::match_continuous);
    check(found.length(4) == 0 || std::stoi(found[2]) <= std::stoi(found[4]), "a repetition ends before it begins");
    at += found.length(0);
    return found[1];
}

static std::string atom(const std::string & text, size_t & at) {
    if (text[at] == '[') {
        return character_class(text, at);
    }
    if (text[at] == '.') {
        at++;
        return NO_ESCAPE + "\\u2028\\u2029]";
    }
    const char name  = text[at] == '\\' && at + 1 < text.size() ? text[at + 1] : ' ';
    const auto found = CLASSES.find((char) std::tolower(name));
    if (found != CLASSES.end()) {
        at += 2;
        return (std::isupper(name) ? NO_ESCAPE : "[") + found->second + "]";
    }
    check(std::string("^$*+?{)").find(text[at]) == std::string::npos,
        std::string("a misplaced ") + text[at] + ", or there is nothing to repeat");
    return literal(character(text, at));
}

static std::string to_gbnf(const std::string & text) {
    const bool  has_start = text[0] == '^';
    bool        has_end   = false;
    int         depth     = 0;
    std::string result    = has_start ? "(" : "char* (";
    for (size_t at = has_start; at < text.size();) {
        check(!has_end, "an anchor stands inside");
        if (text[at] == '|') {
            at++;
            check(depth > 0, "| outside a group: put one around the alternatives");
            result += "\"\" | ";
        } else if (text[at] == '(') {
            at += text.compare(at, 3, "(?:") == 0 ? 3 : 1;
            check(text[at] != '?', "a grammar has no lookahead, lookbehind or named groups");
            check(++depth < MAX_DEPTH, "groups are nested too deeply");
            result += "(";
        } else if (text[at] == '$' && depth == 0) {
            at++;
            has_end = true;
        } else {
            const bool is_end = text[at] == ')' && depth > 0;
            result += is_end ? "\"\")" : atom(text, at);
            at     += is_end;
            depth  -= is_end;
            result += repetition(text, at) + " ";
        }
    }
    check(depth == 0, "unbalanced parentheses");
    return result + (has_end ? "\"\")" : "\"\") char*");
}

std::string h2o_pattern_to_gbnf(const std::string & pattern) {
    try {
        return "\"\\\"\" " + to_gbnf(pattern) + " \"\\\"\"";
    } catch (const std::invalid_argument & e) {
        throw h2o_schema::refusal("pattern", "", "pattern " + pattern + " cannot be kept: " + e.what());
    }
}

// --- lists of strings

// The rest of a string that is none of a trie's.
static std::string other_rests(const common_trie & trie, size_t at) {
    const auto & [children, pattern] = trie.nodes[at];
    if (children.empty()) {
        return "char+";
    }
    std::string result = "(", firsts = NO_ESCAPE; // a \u escape could stand for one of the strings' characters
    for (const auto & [first, next] : children) {
        result += literal(first) + " " + other_rests(trie, next) + " | ";
        firsts += in_class(first);
    }
    return result + firsts + "] char*)" + (pattern < 0 ? "?" : "");
}

std::string h2o_other_strings_to_gbnf(const std::vector<std::string> & strings) {
    return "\"\\\"\" " + other_rests(common_trie(strings), 0) + " \"\\\"\"";
}

// The rest of one of a trie's texts.
static std::string choice(const common_trie & trie, size_t at, int depth) {
    check(depth < MAX_DEPTH, "\"enum\" has too many values that begin with one another");
    std::string shared, more;
    while (trie.nodes[at].children.size() == 1 && trie.nodes[at].pattern < 0) {
        shared += common_unicode_cpt_to_utf8(trie.nodes[at].children.begin()->first);
        at = trie.nodes[at].children.begin()->second;
    }
    const auto & [children, pattern] = trie.nodes[at];
    for (const auto & [first, next] : children) {
        more += (more.empty() ? "(" : " | ") + gbnf_format_literal(common_unicode_cpt_to_utf8(first)) + " " +
            choice(trie, next, depth + 1);
    }
    return gbnf_format_literal(shared) + (more.empty() ? "" : " " + more + (pattern < 0 ? ")" : ")?"));
}

std::string h2o_choice_to_gbnf(const std::vector<std::string> & texts) { return choice(common_trie(texts), 0, 0); }
