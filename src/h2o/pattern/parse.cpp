#include "h2o/pattern/program.h"

#include "unicode.h"

#include <map>
#include <stdexcept>
#include <utility>

static constexpr uint32_t MAX_COUNT   = 1024;
static constexpr size_t   MAX_CODE    = 10000;
static constexpr size_t   MAX_LENGTH  = 10000;
static constexpr int      MAX_NESTING = 50;
static constexpr uint32_t MAX_REPEATS = 500; // each remembers a byte for each character of a text

static const std::map<std::string, uint32_t> PROPERTIES = {
    { "L",  unicode_cpt_flags::LETTER      },
    { "M",  unicode_cpt_flags::ACCENT_MARK },
    { "N",  unicode_cpt_flags::NUMBER      },
    { "P",  unicode_cpt_flags::PUNCTUATION },
    { "S",  unicode_cpt_flags::SYMBOL      },
    { "Lu", H2O_UPPERCASE_LETTER           },
    { "Ll", H2O_LOWERCASE_LETTER           },
    { "Lt", H2O_TITLECASE_LETTER           },
    { "Lm", H2O_OTHER_LETTER               },
    { "Lo", H2O_OTHER_LETTER               },
};

// the script \p{Han}: upstream's tables have only its ideographs
static const std::vector<std::pair<uint32_t, uint32_t>> HAN = {
    { 0x2E80, 0x2E99 }, { 0x2E9B, 0x2EF3 }, { 0x2F00, 0x2FD5 }, { 0x3005, 0x3005 }, { 0x3007, 0x3007 },
    { 0x3021, 0x3029 }, { 0x3038, 0x303B }, { 0x3400, 0x4DBF }, { 0x4E00, 0x9FFF }, { 0xF900, 0xFA6D },
    { 0xFA70, 0xFAD9 }, { 0x16FE2, 0x16FE3 }, { 0x16FF0, 0x16FF6 }, { 0x20000, 0x2A6DF }, { 0x2A700, 0x2B81E },
    { 0x2B820, 0x2CEAD }, { 0x2CEB0, 0x2EBE0 }, { 0x2EBF0, 0x2EE5D }, { 0x2F800, 0x2FA1D }, { 0x30000, 0x3134A },
    { 0x31350, 0x33479 },
};

namespace {

// A piece of a program.
struct piece {
    std::vector<h2o_instruction> code;
    bool can_be_empty = true;

    bool is(h2o_op op) const { return code.size() == 1 && code[0].op == op; }

    int32_t size() const { return (int32_t) code.size(); }

    void append(const piece & next) {
        code.insert(code.end(), next.code.begin(), next.code.end());
        can_be_empty = can_be_empty && next.can_be_empty;
    }
};

class parser {
public:
    parser(const std::string & pattern, bool groups)
        : pattern(pattern), groups(groups), cpts(unicode_cpts_from_utf8(pattern)) {}

    h2o_program parse() {
        if (cpts.size() > MAX_LENGTH) {
            throw std::invalid_argument(
                "a pattern must not have more than " + std::to_string(MAX_LENGTH) + " characters");
        }
        piece all = alternatives();
        if (at < cpts.size()) {
            fail("')' without '('");
        }
        all.code.push_back({ H2O_OP_MATCH });
        program.code = std::move(all.code);
        for (auto & instruction : program.code) {
            if (groups && instruction.op == H2O_OP_SPLIT) {
                instruction.op = H2O_OP_REPEAT; // anyone's pattern: remember where it failed
            }
            if (instruction.op == H2O_OP_CHARS) {
                instruction.slot = program.n_chars++;
            } else if (instruction.op == H2O_OP_REPEAT) {
                instruction.slot = program.n_repeat++;
            }
        }
        if (groups && program.n_repeat > MAX_REPEATS) {
            fail("it has too many alternatives");
        }
        return std::move(program);
    }

private:
    const std::string & pattern;
    const bool groups;
    const std::vector<uint32_t> cpts;
    size_t at = 0;
    int nesting = 0;
    h2o_program program;

    [[noreturn]] void fail(const std::string & what) const {
        throw std::invalid_argument("pattern '" + pattern + "', character " + std::to_string(at) + ": " + what);
    }

    bool next_is(char c) const { return at < cpts.size() && cpts[at] == (uint32_t) c; }

    bool take(const char * text) {
        size_t n = 0;
        while (text[n]) {
            if (at + n >= cpts.size() || cpts[at + n] != (uint32_t) text[n]) {
                return false;
            }
            ++n;
        }
        at += n;
        return true;
    }

    uint32_t take_any() {
        if (at >= cpts.size()) {
            fail("it ends too early");
        }
        return cpts[at++];
    }

    void check_size(const piece & p) const {
        if (p.code.size() > MAX_CODE) {
            fail("it is too long");
        }
    }

    piece one(h2o_op op, const h2o_charset & set) {
        program.sets.push_back(set);
        piece result;
        result.code.push_back({ op });
        result.code[0].set = program.sets.size() - 1;
        result.can_be_empty = op != H2O_OP_CHAR;
        return result;
    }

    piece alternatives() {
        std::vector<piece> all;
        do {
            all.push_back(sequence());
        } while (take("|"));
        piece result = std::move(all.back());
        all.pop_back();
        while (!all.empty()) {
            const piece others = std::move(result);
            const piece & first = all.back();
            result = {};
            result.code.push_back({ H2O_OP_SPLIT });
            result.code[0].a = 1;
            result.code[0].b = first.size() + 2;
            result.code.insert(result.code.end(), first.code.begin(), first.code.end());
            result.code.push_back({ H2O_OP_JUMP });
            result.code.back().a = others.size() + 1;
            result.code.insert(result.code.end(), others.code.begin(), others.code.end());
            result.can_be_empty = first.can_be_empty || others.can_be_empty;
            check_size(result);
            all.pop_back();
        }
        return result;
    }

    piece sequence() {
        piece result;
        piece before;
        while (at < cpts.size() && !next_is('|') && !next_is(')')) {
            piece next = quantified(atom());
            if (before.is(H2O_OP_PEEK) && !before.code[0].negated && next.is(H2O_OP_CHAR)) {
                // (?=[..])[..] is one set
                program.sets[next.code[0].set].intersect(program.sets[before.code[0].set]);
                result.code.pop_back();
            }
            result.append(next);
            check_size(result);
            before = std::move(next);
        }
        return result;
    }

    piece atom() {
        if (++nesting > MAX_NESTING) {
            fail("nested too deeply");
        }
        piece result = take("(") ? group() : single();
        --nesting;
        return result;
    }

    piece group() {
        const bool ahead = take("?=");
        const bool not_ahead = !ahead && take("?!");
        const bool saved     = !ahead && !not_ahead && !take("?:");
        if (saved && next_is('?')) {
            fail("a group of this kind is not supported");
        }
        const uint32_t index = saved ? program.n_groups++ : 0;
        piece inner = alternatives();
        if (!take(")")) {
            fail("'(' without ')'");
        }
        piece result;
        if (saved && groups) {
            result.code.push_back({ H2O_OP_SAVE });
            result.code[0].slot = 2*index;
            result.append(inner);
            result.code.push_back({ H2O_OP_SAVE });
            result.code.back().slot = 2*index + 1;
            result.can_be_empty = inner.can_be_empty;
            return result;
        }
        if (!ahead && !not_ahead) {
            return inner;
        }
        if (inner.is(H2O_OP_CHAR)) {
            result = inner;
            result.code[0].op = H2O_OP_PEEK;
        } else {
            result.code.push_back({ H2O_OP_LOOK });
            result.code[0].a = inner.size() + 2;
            result.append(inner);
            result.code.push_back({ H2O_OP_MATCH });
        }
        result.code[0].negated = not_ahead;
        result.can_be_empty = true;
        return result;
    }

    piece single() {
        piece result;
        const uint32_t c = take_any();
        if (c == '^' || c == '$') {
            result.code.push_back({ c == '^' ? H2O_OP_BEGIN : H2O_OP_END });
            return result;
        }
        if (c == '[') {
            return one(H2O_OP_CHAR, char_class());
        }
        if (c == '\\' && take("b")) {
            const std::string words = "[\\p{L}\\p{M}\\d_\u203F\u2040\u2054\uFE33\uFE34\uFE4D-\uFE4F\uFF3F]";
            return one(H2O_OP_WORD, parser(words, false).parse().sets[0]);
        }
        h2o_charset::part part;
        if (c == '\\') {
            escaped(part);
        } else if (c == '.') {
            part.negated = true;
            part.ranges = { { '\n', '\n' }, { '\r', '\r' } };
        } else if (c == '*' || c == '+' || c == '?' || c == '{') {
            --at;
            fail("this character is not supported here");
        } else {
            part.ranges.push_back({ c, c });
        }
        return one(H2O_OP_CHAR, h2o_charset(part));
    }

    // Parses an escape after its backslash: true for a character, false for a property.
    bool escaped(h2o_charset::part & part) {
        const uint32_t c = take_any();
        const bool letter_or_digit = c < 128 && isalnum((int) c);
        if (c == 'r' || c == 'n' || c == 't' || !letter_or_digit) {
            const uint32_t meant = c == 'r' ? '\r' : c == 'n' ? '\n' : c == 't' ? '\t' : c;
            part.ranges.push_back({ meant, meant });
            return true;
        }
        if (c == 's') {
            part.properties |= unicode_cpt_flags::WHITESPACE;
        } else if (c == 'S') {
            part.without |= unicode_cpt_flags::WHITESPACE;
        } else if (c == 'd') {
            part.properties |= H2O_DECIMAL_DIGIT;
        } else if (c == 'D') {
            part.without |= H2O_DECIMAL_DIGIT;
        } else if (c == 'w') {
            part.ranges.insert(part.ranges.end(), { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } });
        } else if (c == 'W') {
            part.ranges.insert(
                part.ranges.end(), { { 0, '/' }, { ':', '@' }, { '[', '^' }, { '`', '`' }, { '{', 0x10FFFF } });
        } else if (c == 'p' && take("{")) {
            std::string name;
            while (!next_is('}')) {
                name += unicode_cpt_to_utf8(take_any());
            }
            ++at;
            const auto it = PROPERTIES.find(name);
            if (name == "Han") {
                part.ranges.insert(part.ranges.end(), HAN.begin(), HAN.end());
            } else if (it != PROPERTIES.end()) {
                part.properties |= it->second;
            } else {
                fail("the property '" + name + "' is not known");
            }
        } else {
            --at;
            fail("this escape is not known");
        }
        return false;
    }

    // Parses a member of a class: true for a character, then in the last range, false for a property.
    bool member(h2o_charset::part & part) {
        const uint32_t c = take_any();
        if (c == '\\') {
            return escaped(part);
        }
        part.ranges.push_back({ c, c });
        return true;
    }

    h2o_charset char_class() {
        h2o_charset::part part;
        part.negated = take("^");
        do {
            if (member(part) && next_is('-') && at + 1 < cpts.size() && cpts[at + 1] != ']') {
                ++at;
                h2o_charset::part end;
                if (!member(end) || end.ranges[0].first < part.ranges.back().first) {
                    fail("a range ends before it begins");
                }
                part.ranges.back().second = end.ranges[0].first;
            }
        } while (!take("]"));
        return h2o_charset(part);
    }

    uint32_t number() {
        uint32_t n = 0;
        bool any = false;
        while (at < cpts.size() && cpts[at] >= '0' && cpts[at] <= '9') {
            n = 10*n + (take_any() - '0');
            any = true;
            if (n > MAX_COUNT) {
                fail("counts above " + std::to_string(MAX_COUNT) + " are not supported");
            }
        }
        if (!any) {
            fail("a number was expected");
        }
        return n;
    }

    piece quantified(piece inner) {
        uint32_t min = 1;
        uint32_t max = 1;
        if (take("*")) {
            min = 0;
            max = H2O_MANY;
        } else if (take("+")) {
            max = H2O_MANY;
        } else if (take("?")) {
            min = 0;
        } else if (take("{")) {
            min = max = number();
            if (take(",")) {
                max = next_is('}') ? H2O_MANY : number();
            }
            if (!take("}") || max < min) {
                fail("{min,max} was expected");
            }
        } else {
            return inner;
        }
        const bool lazy = take("?");
        if (next_is('+') || next_is('?') || next_is('*') || next_is('{')) {
            fail("this quantifier is not supported");
        }
        if (inner.is(H2O_OP_CHAR) && !lazy && (!groups || max == H2O_MANY)) {
            inner.code[0].op  = H2O_OP_CHARS;
            inner.code[0].min = min;
            inner.code[0].max = max;
            inner.can_be_empty = min == 0;
            return inner;
        }
        if (max == H2O_MANY && inner.can_be_empty) {
            fail("a repeated group must not match the empty text");
        }
        return repeated(inner, min, max, lazy);
    }

    // a repeated group, as copies of its code
    piece repeated(const piece & inner, uint32_t min, uint32_t max, bool lazy) {
        if ((uint64_t) inner.code.size()*(max == H2O_MANY ? min + 1 : max) > MAX_CODE) {
            fail("it is too long");
        }
        piece rest; // the optional copies
        if (max == H2O_MANY) {
            rest = inner;
            rest.code.push_back({ H2O_OP_REPEAT });
            rest.code.back().a = -inner.size();
            rest.code.back().b = 1;
            if (lazy) {
                std::swap(rest.code.back().a, rest.code.back().b);
            }
            if (min == 0) {
                rest = optional(rest, lazy);
            } else {
                --min;
            }
        } else {
            for (uint32_t i = min; i < max; ++i) {
                piece longer = inner;
                longer.append(rest);
                rest = optional(longer, lazy);
            }
        }
        piece result;
        for (uint32_t i = 0; i < min; ++i) {
            result.append(inner);
        }
        result.append(rest);
        check_size(result);
        return result;
    }

    static piece optional(const piece & inner, bool lazy) {
        piece result;
        result.code.push_back({ H2O_OP_SPLIT });
        result.code[0].a = 1;
        result.code[0].b = inner.size() + 1;
        if (lazy) {
            std::swap(result.code[0].a, result.code[0].b);
        }
        result.append(inner);
        result.can_be_empty = true;
        return result;
    }
};

} // namespace

h2o_program h2o_parse_pattern(const std::string & pattern, bool groups) {
    return parser(pattern, groups).parse();
}
