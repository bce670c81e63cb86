#include "schema/pattern.h"

#include "unicode.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

static constexpr uint32_t MAX_CODE_POINT = 0x10FFFF;
static constexpr int      MAX_DEPTH      = 50; // of groups: a grammar has at most 200 open parentheses

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

private:
    static std::string json_escape(uint32_t c) {
        switch (c) {
            case '"':  return "\"\\\\\\\"\"";
            case '\\': return "\"\\\\\\\\\"";
            case '\b': return "\"\\\\b\"";
            case '\f': return "\"\\\\f\"";
            case '\n': return "\"\\\\n\"";
            case '\r': return "\"\\\\r\"";
            case '\t': return "\"\\\\t\"";
        }
        if (c >= ' ') {
            return "";
        }
        char text[16];
        snprintf(text, sizeof(text), "\"\\\\u%04x\"", c);
        return text;
    }

    static std::string gbnf_char(uint32_t c) {
        if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) {
            return std::string(1, (char) c);
        }
        char text[16];
        snprintf(text, sizeof(text), c > 0xFFFF ? "\\U%08X" : c > 0xFF ? "\\u%04X" : "\\x%02X", c);
        return text;
    }

    std::vector<char_range> ranges;
};

struct pattern_node;

using pattern_node_ptr = std::unique_ptr<pattern_node>;

struct pattern_node {
    enum node_kind { SET, SEQUENCE, CHOICE, REPETITION, BEGIN, END };

    node_kind                     kind;
    char_set                      set;
    std::vector<pattern_node_ptr> children;
    std::string                   quantifier;

    explicit pattern_node(node_kind kind) : kind(kind) {}
};

class pattern_parser {
public:
    explicit pattern_parser(const std::string & pattern) {
        for (size_t i = 0; i < pattern.size();) {
            text.push_back(common_parse_next(pattern, i));
        }
    }

    pattern_node_ptr parse() {
        auto result = parse_choice();
        if (pos < text.size()) {
            throw std::invalid_argument("unbalanced parentheses");
        }
        return result;
    }

private:
    static uint32_t common_parse_next(const std::string & pattern, size_t & i) {
        const auto result = common_parse_utf8_codepoint(pattern, i);
        if (result.status != utf8_parse_result::SUCCESS) {
            throw std::invalid_argument("not UTF-8");
        }
        i += result.bytes_consumed;
        return result.codepoint;
    }

    bool at(uint32_t c, size_t offset = 0) const { return pos + offset < text.size() && text[pos + offset] == c; }

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

    pattern_node_ptr parse_choice() {
        auto result = std::make_unique<pattern_node>(pattern_node::CHOICE);
        do {
            result->children.push_back(parse_sequence());
        } while (take('|'));
        return result->children.size() == 1 ? std::move(result->children[0]) : std::move(result);
    }

    pattern_node_ptr parse_sequence() {
        auto result = std::make_unique<pattern_node>(pattern_node::SEQUENCE);
        while (pos < text.size() && !at('|') && !at(')')) {
            auto atom = parse_atom();
            std::string quantifier = parse_quantifier();
            if (!quantifier.empty()) {
                if (atom->kind == pattern_node::BEGIN || atom->kind == pattern_node::END) {
                    throw std::invalid_argument("nothing to repeat");
                }
                auto repetition = std::make_unique<pattern_node>(pattern_node::REPETITION);
                repetition->children.push_back(std::move(atom));
                repetition->quantifier = std::move(quantifier);
                atom = std::move(repetition);
            }
            result->children.push_back(std::move(atom));
        }
        return result;
    }

    pattern_node_ptr parse_atom() {
        auto set = std::make_unique<pattern_node>(pattern_node::SET);
        const uint32_t c = next();
        switch (c) {
            case '^': return std::make_unique<pattern_node>(pattern_node::BEGIN);
            case '$': return std::make_unique<pattern_node>(pattern_node::END);
            case '(': return parse_group();
            case '*': case '+': case '?': throw std::invalid_argument("nothing to repeat");
            case '[':  set->set = parse_class(); break;
            case '\\': set->set = parse_escape(/*in_class =*/ false); break;
            case '.':
                for (const uint32_t end : std::initializer_list<uint32_t>{ 0x0A, 0x0D, 0x2028, 0x2029 }) {
                    set->set.add(end, end);
                }
                set->set = set->set.complement();
                break;
            default: set->set.add(c, c);
        }
        return set;
    }

    pattern_node_ptr parse_group() {
        if (++depth > MAX_DEPTH) {
            throw std::invalid_argument("groups are nested too deeply");
        }
        if (take('?')) {
            if (at('=') || at('!')) {
                throw std::invalid_argument("a grammar has no lookahead");
            }
            if (at('<') && (at('=', 1) || at('!', 1))) {
                throw std::invalid_argument("a grammar has no lookbehind");
            }
            take('P');
            if (take('<')) {
                while (next() != '>') {
                }
            } else if (!take(':')) {
                throw std::invalid_argument("unsupported group");
            }
        }
        auto result = parse_choice();
        if (!take(')')) {
            throw std::invalid_argument("unbalanced parentheses");
        }
        depth--;
        return result;
    }

    // empty where there is none
    std::string parse_quantifier() {
        std::string result;
        const size_t begin = pos;
        if (take('*') || take('+') || take('?')) {
            result = std::string(1, (char) text[pos - 1]);
        } else if (take('{')) {
            int64_t min = parse_count();
            int64_t max = take(',') ? parse_count() : min;
            if (min < 0 || !take('}')) {
                if (at(',', begin + 1 - pos)) {
                    throw std::invalid_argument("a repetition has no lower number");
                }
                pos = begin; // no quantifier: a character
                return "";
            }
            if (max >= 0 && max < min) {
                throw std::invalid_argument("a repetition has its numbers in the wrong order");
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

    // -1 where there is none
    int64_t parse_count() {
        int64_t result = -1;
        while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') {
            result = std::min<int64_t>(std::max<int64_t>(result, 0) * 10 + (text[pos++] - '0'), INT_MAX);
        }
        return result;
    }

    char_set parse_class() {
        const bool is_negated = take('^');
        if (at(']')) {
            throw std::invalid_argument("an empty class");
        }
        char_set result;
        while (!take(']')) {
            const char_set first = parse_class_atom();
            if (!at('-') || at(']', 1)) {
                result.add(first);
                continue;
            }
            const uint32_t low = single;
            take('-');
            parse_class_atom();
            if (low == NOT_SINGLE || single == NOT_SINGLE || single < low) {
                throw std::invalid_argument("a range in a class is not from a character to a later one");
            }
            result.add(low, single);
        }
        return is_negated ? result.complement() : result.sorted();
    }

    // sets single, if it is one character
    char_set parse_class_atom() {
        const uint32_t c = next();
        if (c == '\\') {
            return parse_escape(/*in_class =*/ true);
        }
        return one(c);
    }

    char_set one(uint32_t c) {
        char_set result;
        result.add(c, c);
        single = c;
        return result;
    }

    char_set parse_escape(bool in_class) {
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
            case 'x': return one(parse_hex(2));
            case 'u': return one(parse_unicode());
            case 'c': return one(parse_control());
        }
        if (c == '0' && !(pos < text.size() && text[pos] >= '0' && text[pos] <= '9')) {
            return one(0);
        }
        if (c == 'b' && in_class) {
            return one('\b');
        }
        if (c >= 0x80 || (c < '0' || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || c > 'z')) {
            return one(c); // what needs no backslash means itself
        }
        throw std::invalid_argument(std::string("unsupported escape \\") + (char) c);
    }

    uint32_t parse_control() {
        const uint32_t c = next();
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'))) {
            throw std::invalid_argument("unsupported escape \\c");
        }
        return c % 32;
    }

    uint32_t parse_unicode() {
        if (take('{')) {
            uint32_t result = 0;
            do {
                result = result * 16 + hex(next());
                if (result > MAX_CODE_POINT) {
                    throw std::invalid_argument("\\u{} is above the last character");
                }
            } while (!take('}'));
            return result;
        }
        const uint32_t high = parse_hex(4);
        if (high >= 0xD800 && high < 0xDC00 && at('\\') && at('u', 1)) {
            pos += 2;
            const uint32_t low = parse_hex(4);
            if (low < 0xDC00 || low > 0xDFFF) {
                throw std::invalid_argument("half a surrogate pair");
            }
            return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
        }
        return high;
    }

    uint32_t parse_hex(int n_digits) {
        uint32_t result = 0;
        for (int i = 0; i < n_digits; i++) {
            result = result * 16 + hex(next());
        }
        return result;
    }

    static uint32_t hex(uint32_t c) {
        if (c >= '0' && c <= '9') {
            return c - '0';
        }
        if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
            return c % 32 + 9;
        }
        throw std::invalid_argument("an escape has too few hexadecimal digits");
    }

    static constexpr uint32_t NOT_SINGLE = UINT32_MAX;

    std::vector<uint32_t> text;
    size_t                pos    = 0;
    int                   depth  = 0;
    uint32_t              single = NOT_SINGLE;
};

static std::string join(const std::vector<std::string> & parts, const std::string & separator) {
    std::string result;
    for (const auto & part : parts) {
        result += (&part == &parts.front() ? "" : separator) + part;
    }
    return result;
}

static std::string to_gbnf(const pattern_node & node) {
    std::vector<std::string> parts;
    for (const auto & child : node.children) {
        parts.push_back(to_gbnf(*child));
    }
    switch (node.kind) {
        case pattern_node::SET:        return node.set.to_gbnf();
        case pattern_node::SEQUENCE:   return parts.empty() ? "\"\"" : join(parts, " ");
        case pattern_node::CHOICE:     return "(" + join(parts, " | ") + ")";
        case pattern_node::REPETITION: return "(" + parts[0] + ")" + node.quantifier;
        case pattern_node::BEGIN:
        case pattern_node::END:        break;
    }
    throw std::invalid_argument("an anchor stands inside");
}

// The same, with any characters where an anchor is missing.
static std::string found_in_gbnf(const pattern_node & node, const std::string & char_rule) {
    std::vector<std::string> parts;
    if (node.kind == pattern_node::CHOICE) {
        for (const auto & child : node.children) {
            parts.push_back(found_in_gbnf(*child, char_rule));
        }
        return "(" + join(parts, " | ") + ")";
    }
    if (node.kind != pattern_node::SEQUENCE) {
        return char_rule + "* " + to_gbnf(node) + " " + char_rule + "*";
    }
    const auto & children = node.children;
    if (children.size() == 1 &&
        (children[0]->kind == pattern_node::CHOICE || children[0]->kind == pattern_node::SEQUENCE)) {
        return found_in_gbnf(*children[0], char_rule);
    }
    size_t first = 0;
    size_t last  = children.size();
    while (first < last && children[first]->kind == pattern_node::BEGIN) {
        first++;
    }
    while (last > first && children[last - 1]->kind == pattern_node::END) {
        last--;
    }
    if (first == 0) {
        parts.push_back(char_rule + "*");
    }
    for (size_t i = first; i < last; i++) {
        parts.push_back(to_gbnf(*children[i]));
    }
    if (last == children.size()) {
        parts.push_back(char_rule + "*");
    }
    return parts.empty() ? "\"\"" : join(parts, " ");
}

std::string h2o_pattern_to_gbnf(const std::string & pattern, const std::string & char_rule) {
    return found_in_gbnf(*pattern_parser(pattern).parse(), char_rule);
}
