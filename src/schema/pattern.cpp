#include "schema/pattern.h"

#include "json.h"
#include "json-schema-to-grammar.h"
#include "unicode.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <map>
#include <regex>
#include <stdexcept>
#include <utility>

static constexpr int MAX_DEPTH   = 50;  // of groups: a grammar has at most 200 open parentheses
static constexpr int MAX_CHOICES = 100; // inside each other, likewise

using ranges = std::vector<std::pair<uint32_t, uint32_t>>; // of characters

// what JSON does not escape
static const ranges PLAIN = { { ' ', '!' }, { '#', '[' }, { ']', 0xD7FF }, { 0xE000, 0x10FFFF } };

// what JSON escapes, and how a class of GBNF has the letter that stands for it
static const std::map<uint32_t, std::string> ESCAPES = {
    { '"', "\\\"" }, { '\\', "\\\\" }, { '\b', "b" }, { '\f', "f" }, { '\n', "n" }, { '\r', "r" }, { '\t', "t" } };

static const std::map<char, ranges> CLASSES = {
    { 'd', { { '0', '9' } } },
    { 'w', { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } } },
    { 's', { { '\t', '\r' }, { ' ', ' ' }, { 0xA0, 0xA0 }, { 0x1680, 0x1680 }, { 0x2000, 0x200A }, { 0x2028, 0x2029 },
        { 0x202F, 0x202F }, { 0x205F, 0x205F }, { 0x3000, 0x3000 }, { 0xFEFF, 0xFEFF } } },
    { 't', { { '\t', '\t' } } }, { 'n', { { '\n', '\n' } } }, { 'r', { { '\r', '\r' } } },
};

static bool is_one(const ranges & set) { return set.size() == 1 && set[0].first == set[0].second; }

static std::string class_range(uint32_t first, uint32_t last) {
    char text[32];
    snprintf(text, sizeof(text), "\\U%08X-\\U%08X", first, last);
    return text;
}

// Such a character, or another one, in a JSON string.
static std::string to_gbnf(const ranges & set, bool is_other) {
    if (is_one(set) && !is_other) {
        const std::string quoted = common_json(common_unicode_cpt_to_utf8(set[0].first)).dump();
        return gbnf_format_literal(quoted.substr(1, quoted.size() - 2));
    }
    std::string plain, escapes;
    for (const auto & [first, last] : set) {
        for (const auto & part : PLAIN) {
            const uint32_t begin = std::max(first, part.first), end = std::min(last, part.second);
            plain += begin <= end ? class_range(begin, end) : "";
        }
    }
    for (const auto & [c, letter] : ESCAPES) {
        const bool is_in = std::any_of(set.begin(), set.end(), [c = c](const auto & range) {
            return range.first <= c && c <= range.second;
        });
        escapes += is_in != is_other ? letter : "";
    }
    if (is_other) {
        plain = "^\"\\\\\\x00-\\x1F" + plain;
    }
    if (plain.empty() && escapes.empty()) {
        throw std::invalid_argument("a class holds no character that JSON says");
    }
    return (plain.empty() ? "(" : "([" + plain + "]") + (plain.empty() || escapes.empty() ? "" : " | ") +
        (escapes.empty() ? ")" : "\"\\\\\" [" + escapes + "])");
}

namespace {

// Writes GBNF while it reads a pattern.
class pattern_reader {
public:
    explicit pattern_reader(const std::string & text) : text(text) {}

    std::string read() {
        const std::string result = alternatives(0);
        if (pos < text.size()) {
            throw std::invalid_argument("unbalanced parentheses, or an anchor inside");
        }
        return result;
    }

private:
    const std::string & text;
    size_t              pos = 0;

    bool at(char c) const { return pos < text.size() && text[pos] == c; }

    bool take(char c) {
        const bool result = at(c);
        pos += result;
        return result;
    }

    uint32_t next() {
        const auto c = common_parse_utf8_codepoint(text, pos);
        if (c.status != utf8_parse_result::SUCCESS) {
            throw std::invalid_argument("it ends too early, or is not UTF-8");
        }
        pos += c.bytes_consumed;
        return c.codepoint;
    }

    // Alternatives of a group or of the pattern. The pattern has any characters where an anchor is missing.
    std::string alternatives(int depth) {
        if (depth > MAX_DEPTH) {
            throw std::invalid_argument("groups are nested too deeply");
        }
        std::string result;
        do {
            result += result.empty() ? "(" : " | ";
            result += depth > 0 || take('^') ? "\"\"" : "char*";
            while (pos < text.size() && !at('|') && !at(')') && !(depth == 0 && at('$'))) {
                const std::string atom = read_atom(depth);
                result += " " + atom + quantifier();
            }
            result += depth > 0 || take('$') ? "" : " char*";
        } while (take('|'));
        return result + ")";
    }

    std::string read_atom(int depth) {
        const uint32_t c = next();
        if (c == '(') {
            if (take('?') && !take(':')) {
                throw std::invalid_argument("a grammar has no lookahead, lookbehind or named groups");
            }
            const std::string result = alternatives(depth + 1);
            if (!take(')')) {
                throw std::invalid_argument("unbalanced parentheses");
            }
            return result;
        }
        if (c == '[') {
            return read_class();
        }
        if (c == '.') {
            return to_gbnf({ { '\n', '\n' }, { '\r', '\r' }, { 0x2028, 0x2029 } }, true);
        }
        if (c == '\\' && (at('D') || at('W') || at('S'))) {
            return to_gbnf(CLASSES.at((char) (next() + 'a' - 'A')), true);
        }
        if (c < 0x80 && std::string("^$*+?").find((char) c) != std::string::npos) {
            throw std::invalid_argument("an anchor stands inside, or there is nothing to repeat");
        }
        return to_gbnf(c == '\\' ? escape() : ranges { { c, c } }, false);
    }

    // empty where there is none
    std::string quantifier() {
        static const std::regex REPETITION("[*+?]|\\{(\\d{1,4})(,(\\d{0,4}))?\\}");
        const std::string rest = text.substr(pos, 12);
        std::smatch       found;
        if (!std::regex_search(rest, found, REPETITION, std::regex_constants::match_continuous)) {
            return at('{') ? throw std::invalid_argument("a repetition is not {n}, {n,} or {n,m} of four digits") : "";
        }
        if (found.length(3) > 0 && std::stoi(found[3]) < std::stoi(found[1])) {
            throw std::invalid_argument("a repetition ends before it begins");
        }
        pos += found.length(0);
        take('?'); // lazy: the same texts
        return found[0];
    }

    std::string read_class() {
        const bool is_negated = take('^');
        ranges     result;
        while (!take(']')) {
            ranges atom = class_atom();
            if (at('-') && text.compare(pos, 2, "-]") != 0) {
                take('-');
                const ranges last = class_atom();
                if (!is_one(atom) || !is_one(last) || last < atom) {
                    throw std::invalid_argument("a range in a class is not from a character to a later one");
                }
                atom[0].second = last[0].second;
            }
            result.insert(result.end(), atom.begin(), atom.end());
        }
        return to_gbnf(result, is_negated);
    }

    ranges class_atom() {
        const uint32_t c = next();
        return c == '\\' ? escape() : ranges { { c, c } };
    }

    ranges escape() {
        const uint32_t c = next();
        if (c == 'x' || c == 'u') {
            const size_t      n_digits = c == 'x' ? 2 : 4;
            const std::string hex      = text.substr(pos, n_digits);
            if (hex.size() < n_digits || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
                throw std::invalid_argument("an escape has too few hexadecimal digits");
            }
            pos += hex.size();
            const uint32_t code = (uint32_t) std::stoul(hex, nullptr, 16);
            return { { code, code } };
        }
        if (c < 0x80 && std::isalnum((int) c)) {
            const auto found = CLASSES.find((char) c);
            return found != CLASSES.end() ? found->second :
                throw std::invalid_argument(std::string("unsupported escape \\") + (char) c);
        }
        return { { c, c } }; // what needs no backslash means itself
    }
};

} // namespace

std::string h2o_pattern_to_gbnf(const std::string & pattern) {
    try {
        return "\"\\\"\" " + pattern_reader(pattern).read() + " \"\\\"\"";
    } catch (const std::invalid_argument & e) {
        throw std::invalid_argument("pattern " + pattern + " cannot be kept: " + e.what());
    }
}

static std::u32string characters_of(const std::string & text) {
    std::u32string result;
    for (size_t i = 0; i < text.size();) {
        const auto next = common_parse_utf8_codepoint(text, i);
        if (next.status != utf8_parse_result::SUCCESS) {
            throw std::invalid_argument("not UTF-8");
        }
        result += next.codepoint;
        i += next.bytes_consumed;
    }
    return result;
}

// The rest of a string that is none of these.
static std::string other_rests(const std::vector<std::u32string> & rests) {
    std::map<uint32_t, std::vector<std::u32string>> by_first;
    bool may_end = true;
    for (const auto & rest : rests) {
        may_end = may_end && !rest.empty();
        if (!rest.empty()) {
            by_first[rest[0]].push_back(rest.substr(1));
        }
    }
    std::string result;
    ranges      firsts;
    for (const auto & [first, next] : by_first) {
        result += to_gbnf({ { first, first } }, false) + " " + other_rests(next) + " | ";
        firsts.emplace_back(first, first);
    }
    // a \u escape could stand for one of these: a character that differs has none
    return by_first.empty() ? "char+" : "(" + result + to_gbnf(firsts, true) + " char*)" + (may_end ? "?" : "");
}

std::string h2o_other_strings_to_gbnf(const std::vector<std::string> & strings) {
    std::vector<std::u32string> all;
    std::transform(strings.begin(), strings.end(), std::back_inserter(all), characters_of);
    return "\"\\\"\" " + other_rests(all) + " \"\\\"\"";
}

// texts[first, last), sorted and each one once, from character `begin` on
static std::string choice(
        const std::vector<std::u32string> & texts, size_t first, size_t last, size_t begin, int depth) {
    const auto & least = texts[first], & largest = texts[last - 1];
    const auto end = std::mismatch(least.begin() + begin, least.end(), largest.begin() + begin, largest.end()).first;
    const size_t n_shared = end - least.begin();

    std::string shared;
    for (auto c = least.begin() + begin; c < end; ++c) {
        shared += common_unicode_cpt_to_utf8(*c);
    }
    std::string result = gbnf_format_literal(shared);
    for (size_t i = first, next = i; i < last && last - first > 1; i = next) {
        next = i + 1;
        while (next < last && depth < MAX_CHOICES && texts[next].compare(n_shared, 1, texts[i], n_shared, 1) == 0) {
            next++;
        }
        result += (i == first ? " (" : " | ") + choice(texts, i, next, n_shared, depth + 1);
    }
    return result + (last - first > 1 ? ")" : "");
}

std::string h2o_choice_to_gbnf(const std::vector<std::string> & texts) {
    std::vector<std::u32string> all;
    std::transform(texts.begin(), texts.end(), std::back_inserter(all), characters_of);
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return choice(all, 0, all.size(), 0, 0);
}
