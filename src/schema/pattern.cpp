#include "schema/pattern.h"

#include "json.h"
#include "json-schema-to-grammar.h"
#include "unicode.h"

#include <algorithm>
#include <cctype>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

static constexpr uint32_t MAX_CODE_POINT = 0x10FFFF;
static constexpr int      MAX_DEPTH      = 50;  // of groups: a grammar has at most 200 open parentheses
static constexpr int      MAX_NAME       = 190; // likewise
static constexpr int      MAX_CHOICES    = 100; // likewise, inside each other

using char_range = std::pair<uint32_t, uint32_t>;

// characters as sorted ranges that do not touch
class char_set {
public:
    void add(uint32_t first, uint32_t last) { ranges.emplace_back(first, last); }

    void add(const char_set & other) { ranges.insert(ranges.end(), other.ranges.begin(), other.ranges.end()); }

    char_set sorted() const {
        auto all = ranges;
        std::sort(all.begin(), all.end());
        char_set result;
        for (const auto & range : all) {
            if (!result.ranges.empty() && range.first <= result.ranges.back().second + 1) {
                result.ranges.back().second = std::max(result.ranges.back().second, range.second);
            } else {
                result.ranges.push_back(range);
            }
        }
        return result;
    }

    char_set complement() const {
        char_set result;
        uint32_t next = 0;
        for (const auto & range : sorted().ranges) {
            if (range.first > next) {
                result.add(next, range.first - 1);
            }
            next = range.second + 1;
        }
        if (next <= MAX_CODE_POINT) {
            result.add(next, MAX_CODE_POINT);
        }
        return result;
    }

    // GBNF of such a character in a JSON string: plain or escaped
    std::string to_gbnf() const {
        std::string plain;
        std::vector<std::string> alternatives;
        for (const auto & range : sorted().ranges) {
            for (uint32_t c = range.first; c <= std::min(range.second, (uint32_t) '\\'); c++) {
                const std::string escape = json_escape(c);
                if (!escape.empty()) {
                    alternatives.push_back(escape);
                }
            }
            // what JSON does not escape
            for (const char_range & part : { char_range(' ', '!'), char_range('#', '['), char_range(']', 0xD7FF),
                     char_range(0xE000, MAX_CODE_POINT) }) {
                const uint32_t first = std::max(range.first, part.first);
                const uint32_t last  = std::min(range.second, part.second);
                if (first <= last) {
                    plain += gbnf_char(first) + (last > first ? "-" + gbnf_char(last) : "");
                }
            }
        }
        if (!plain.empty()) {
            alternatives.insert(alternatives.begin(), "[" + plain + "]");
        }
        if (alternatives.empty()) {
            throw std::invalid_argument("a class holds no character that JSON can say");
        }
        std::string result;
        for (const auto & alternative : alternatives) {
            result += (result.empty() ? "" : " | ") + alternative;
        }
        return alternatives.size() > 1 ? "(" + result + ")" : result;
    }

    static std::string gbnf_char(uint32_t c) {
        if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) {
            return std::string(1, (char) c);
        }
        char text[16];
        snprintf(text, sizeof(text), c > 0xFFFF ? "\\U%08X" : c > 0xFF ? "\\u%04X" : "\\x%02X", c);
        return text;
    }

private:
    // GBNF of how JSON escapes an ASCII character; empty where it does not
    static std::string json_escape(uint32_t c) {
        const std::string quoted = common_json(std::string(1, (char) c)).dump();
        std::string result = "\"";
        for (size_t i = 1; i + 1 < quoted.size(); i++) {
            result += (quoted[i] == '\\' || quoted[i] == '"' ? "\\" : "") + std::string(1, quoted[i]);
        }
        return quoted.size() == 3 ? "" : result + "\"";
    }

    std::vector<char_range> ranges;
};

using characters = std::vector<uint32_t>;

static characters characters_of(const std::string & text) {
    characters result;
    for (size_t i = 0; i < text.size();) {
        const auto next = common_parse_utf8_codepoint(text, i);
        if (next.status != utf8_parse_result::SUCCESS) {
            throw std::invalid_argument("not UTF-8");
        }
        i += next.bytes_consumed;
        result.push_back(next.codepoint);
    }
    return result;
}

static std::string join(const std::vector<std::string> & alternatives) {
    std::string result;
    for (const auto & alternative : alternatives) {
        result += (&alternative == &alternatives.front() ? "" : " | ") + alternative;
    }
    return result;
}

namespace {

// Writes GBNF while it reads a pattern.
class pattern_reader {
public:
    pattern_reader(const std::string & pattern, const std::string & char_rule)
        : any(char_rule + "*"), text(characters_of(pattern)) {}

    // any characters where an anchor is missing
    std::string read() {
        std::vector<std::string> alternatives;
        do {
            const std::string before = take('^') ? "" : any + " ";
            const std::string inner  = sequence();
            alternatives.push_back(before + inner + (take('$') ? "" : " " + any));
        } while (take('|'));
        if (pos < text.size()) {
            throw std::invalid_argument("unbalanced parentheses");
        }
        return "(" + join(alternatives) + ")";
    }

private:
    static constexpr uint32_t NOT_SINGLE = UINT32_MAX;

    const std::string any;
    const characters  text;
    size_t            pos    = 0;
    int               depth  = 0;
    uint32_t          single = NOT_SINGLE; // the character of the last class atom, if it is one

    bool at(uint32_t c, size_t offset = 0) const { return pos + offset < text.size() && text[pos + offset] == c; }

    bool at_digit() const { return pos < text.size() && text[pos] >= '0' && text[pos] <= '9'; }

    bool take(uint32_t c) {
        const bool result = at(c);
        pos += result;
        return result;
    }

    uint32_t next() {
        if (pos >= text.size()) {
            throw std::invalid_argument("it ends too early");
        }
        return text[pos++];
    }

    // up to the end of an alternative, or an anchor there
    std::string sequence() {
        std::string result = "\"\"";
        const auto at_last_anchor = [&] { return depth == 0 && at('$') && (pos + 1 == text.size() || at('|', 1)); };
        while (pos < text.size() && !at('|') && !at(')') && !at_last_anchor()) {
            const std::string atom = read_atom();
            result += " " + atom + quantifier();
        }
        return result;
    }

    std::string read_atom() {
        char_set set;
        const uint32_t c = next();
        switch (c) {
            case '^': case '$': throw std::invalid_argument("an anchor stands inside");
            case '(': return group();
            case '*': case '+': case '?': throw std::invalid_argument("nothing to repeat");
            case '[':  set = read_class(); break;
            case '\\': set = escape(/*in_class =*/ false); break;
            case '.':
                for (const uint32_t end : std::initializer_list<uint32_t>{ 0x0A, 0x0D, 0x2028, 0x2029 }) {
                    set.add(end, end);
                }
                set = set.complement();
                break;
            default: set.add(c, c);
        }
        return set.to_gbnf();
    }

    std::string group() {
        if (++depth > MAX_DEPTH) {
            throw std::invalid_argument("groups are nested too deeply");
        }
        if (take('?') && !take(':')) {
            throw std::invalid_argument("a grammar has no lookahead, lookbehind or named groups");
        }
        std::vector<std::string> alternatives;
        do {
            alternatives.push_back(sequence());
        } while (take('|'));
        if (!take(')')) {
            throw std::invalid_argument("unbalanced parentheses");
        }
        depth--;
        return "(" + join(alternatives) + ")";
    }

    // empty where there is none
    std::string quantifier() {
        std::string result;
        if (take('*') || take('+') || take('?')) {
            result = std::string(1, (char) text[pos - 1]);
        } else if (at('{') && pos + 1 < text.size() && text[pos + 1] >= '0' && text[pos + 1] <= '9') {
            pos++;
            const int64_t min = count();
            const int64_t max = !take(',') ? min : at_digit() ? count() : -1;
            if (!take('}') || (max >= 0 && max < min)) {
                throw std::invalid_argument("a repetition is not {n}, {n,} or {n,m}");
            }
            result = "{" + std::to_string(min) + "," + (max < 0 ? "" : std::to_string(max)) + "}";
        }
        if (!result.empty()) {
            take('?'); // lazy: the same texts
            if (at('*') || at('+') || at('?')) {
                throw std::invalid_argument("a quantifier follows a quantifier");
            }
        }
        return result;
    }

    int64_t count() {
        int64_t result = 0;
        while (at_digit()) {
            result = std::min<int64_t>(result*10 + (text[pos++] - '0'), INT_MAX);
        }
        return result;
    }

    char_set read_class() {
        const bool is_negated = take('^');
        if (at(']')) {
            throw std::invalid_argument("an empty class");
        }
        char_set result;
        while (!take(']')) {
            const char_set first = class_atom();
            if (!at('-') || at(']', 1)) {
                result.add(first);
                continue;
            }
            const uint32_t low = single;
            take('-');
            class_atom();
            if (low == NOT_SINGLE || single == NOT_SINGLE || single < low) {
                throw std::invalid_argument("a range in a class is not from a character to a later one");
            }
            result.add(low, single);
        }
        return is_negated ? result.complement() : result.sorted();
    }

    char_set class_atom() {
        const uint32_t c = next();
        return c == '\\' ? escape(/*in_class =*/ true) : one(c);
    }

    char_set one(uint32_t c) {
        char_set result;
        result.add(c, c);
        single = c;
        return result;
    }

    char_set escape(bool in_class) {
        const uint32_t c = next();
        char_set result;
        single = NOT_SINGLE;
        switch (c) {
            case 'd': case 'D':
                result.add('0', '9');
                return c == 'd' ? result : result.complement();
            case 'w': case 'W':
                result.add('0', '9');
                result.add('A', 'Z');
                result.add('_', '_');
                result.add('a', 'z');
                return c == 'w' ? result : result.complement();
            case 's': case 'S':
                for (const char_range & range : std::initializer_list<char_range>{ { '\t', '\r' }, { ' ', ' ' },
                         { 0xA0, 0xA0 }, { 0x1680, 0x1680 }, { 0x2000, 0x200A }, { 0x2028, 0x2029 }, { 0x202F, 0x202F },
                         { 0x205F, 0x205F }, { 0x3000, 0x3000 }, { 0xFEFF, 0xFEFF } }) {
                    result.add(range.first, range.second);
                }
                return c == 's' ? result : result.complement();
            case 't': return one('\t');
            case 'n': return one('\n');
            case 'r': return one('\r');
            case 'f': return one('\f');
            case 'v': return one('\v');
            case 'x': return one(hex(2));
            case 'u': return one(hex(4));
        }
        if (c == 'b' && in_class) {
            return one('\b');
        }
        if (c >= 0x80 || !std::isalnum((int) c)) {
            return one(c); // what needs no backslash means itself
        }
        throw std::invalid_argument(std::string("unsupported escape \\") + (char) c);
    }

    uint32_t hex(int n_digits) {
        uint32_t result = 0;
        for (int i = 0; i < n_digits; i++) {
            const uint32_t c = next();
            if (c >= 0x80 || !std::isxdigit((int) c)) {
                throw std::invalid_argument("an escape has too few hexadecimal digits");
            }
            result = result*16 + (c <= '9' ? c - '0' : c % 32 + 9);
        }
        return result;
    }
};

} // namespace

std::string h2o_pattern_to_gbnf(const std::string & pattern, const std::string & char_rule) {
    return pattern_reader(pattern, char_rule).read();
}

// The rest of a string that is none of these.
static std::string other_rests(const std::vector<characters> & rests, const std::string & char_rule, int depth) {
    if (depth > MAX_NAME) {
        throw std::invalid_argument("next to additionalProperties, names of properties must be shorter than " +
            std::to_string(MAX_NAME) + " characters");
    }
    std::map<uint32_t, std::vector<characters>> by_first;
    bool may_end = true;
    for (const auto & rest : rests) {
        may_end = may_end && !rest.empty();
        if (!rest.empty()) {
            by_first[rest[0]].emplace_back(rest.begin() + 1, rest.end());
        }
    }
    if (by_first.empty()) {
        return char_rule + "+";
    }
    std::vector<std::string> alternatives;
    std::string excluded;
    for (const auto & [first, next] : by_first) {
        char_set one;
        one.add(first, first);
        alternatives.push_back(one.to_gbnf() + " " + other_rests(next, char_rule, depth + 1));
        excluded += char_set::gbnf_char(first);
    }
    // a character that differs is not escaped, so that no escape can stand for one of these
    alternatives.push_back("[^\"\\\\\\x00-\\x1F" + excluded + "] " + char_rule + "*");
    return "(" + join(alternatives) + ")" + (may_end ? "?" : "");
}

std::string h2o_other_strings_to_gbnf(const std::vector<std::string> & strings, const std::string & char_rule) {
    std::vector<characters> all;
    for (const auto & text : strings) {
        all.push_back(characters_of(text));
    }
    return "\"\\\"\" " + other_rests(all, char_rule, 0) + " \"\\\"\"";
}

static bool is_continued(char c) { // not the first byte of a character
    return (c & 0xC0) == 0x80;
}

// texts[first, last), sorted and each one once, from byte `begin` on
static std::string choice(
        const std::vector<std::string> & texts, size_t first, size_t last, size_t begin, int depth) {
    const std::string & least = texts[first], & largest = texts[last - 1];

    size_t end = std::mismatch(least.begin() + begin, least.end(), largest.begin() + begin, largest.end()).first -
        least.begin();
    while (end > begin && end < largest.size() && is_continued(largest[end])) {
        end--;
    }
    const auto shared = gbnf_format_literal(least.substr(begin, end - begin));
    if (last - first == 1) {
        return shared;
    }
    std::vector<std::string> alternatives;
    for (size_t i = first, next = i; i < last; i = next) {
        size_t n = 1; // bytes of the next character
        for (; end + n < texts[i].size() && is_continued(texts[i][end + n]); ++n) {}
        for (; next < last && depth < MAX_CHOICES && texts[next].compare(end, n, texts[i], end, n) == 0; ++next) {}
        next = std::max(next, i + 1);
        alternatives.push_back(choice(texts, i, next, end, depth + 1));
    }
    return (end > begin ? shared + " (" : "(") + join(alternatives) + ")";
}

std::string h2o_choice_to_gbnf(std::vector<std::string> texts) {
    std::sort(texts.begin(), texts.end());
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    return choice(texts, 0, texts.size(), 0, 0);
}

std::vector<std::string> h2o_optional_to_gbnf(const std::vector<std::string> & names,
        const std::unordered_map<std::string, std::string> & pairs,
        const std::function<std::string(const std::string &, const std::string &)> & add_rest) {
    std::vector<std::string> result(names.size());

    std::string rest;
    for (size_t i = names.size(); i-- > 0;) {
        const bool        repeats = names[i] == "*";
        const std::string pair    = pairs.at(names[i]), next = "( \",\" space " + pair + " )";

        result[i] = pair + (repeats ? " " + next + "*" : "") + rest;
        if (i > 0) {
            rest = " " + add_rest(names[i - 1], next + (repeats ? "*" : "?") + rest);
        }
    }
    return result;
}
