#include "schema/number-range.h"

#include "schema/assertions.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <stdexcept>

static constexpr int MAX_DIGITS = 16; // before the point, and after it

// A bound without its sign: MAX_DIGITS digits before the point, and as many after it, or none for an integer.
struct bound {
    std::string digits;
    bool        has_more; // than these digits
    bool        is_negative;
    bool        is_exclusive;
};

static bool is_all(const std::string & digits, char digit) {
    return digits.find_first_not_of(digit) == std::string::npos;
}

static std::optional<bound> bound_of(
        const common_json & schema, const std::string & open, const std::string & closed, size_t n_digits) {
    const bool is_exclusive = schema.contains(closed);
    if (!is_exclusive && !schema.contains(open)) {
        return std::nullopt;
    }
    const std::string keyword = is_exclusive ? closed : open;
    if (!schema.at(keyword).is_number() || (is_exclusive && schema.contains(open))) {
        throw std::invalid_argument("\"" + keyword +
            "\" must be a number, and cannot be combined with another bound on its side");
    }
    const std::string text     = schema.at(keyword).dump();
    const size_t      exponent = std::min(text.find('e'), text.size());
    std::string       digits   = text.substr(text[0] == '-', exponent - (text[0] == '-'));
    const int         n_whole  = (int) std::min(digits.find('.'), digits.size()) +
        (exponent < text.size() ? std::atoi(text.c_str() + exponent + 1) : 0);
    digits.erase(std::remove(digits.begin(), digits.end(), '.'), digits.end());
    if (is_all(digits, '0')) {
        return bound { std::string(n_digits, '0'), false, false, is_exclusive };
    }
    if (n_whole > MAX_DIGITS) {
        return bound { std::string(n_digits, '9'), true, text[0] == '-', is_exclusive };
    }
    digits = std::string((size_t) (MAX_DIGITS - n_whole), '0') + digits + std::string(n_digits, '0');
    return bound { digits.substr(0, n_digits), !is_all(digits.substr(n_digits), '0'), text[0] == '-', is_exclusive };
}

// Makes it the next number of as many digits. False if there is none.
static bool step(std::string & digits, bool is_up) {
    for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
        if (*digit != (is_up ? '9' : '0')) {
            *digit = (char) (*digit + (is_up ? 1 : -1));
            return true;
        }
        *digit = is_up ? '0' : '9';
    }
    return false;
}

// The rest of a number: digits between low and high. n_whole of them are before the point; a number does not begin with
// another zero. n_whole is -1 after the point, where zeros at the end may be missing.
static std::string between(const std::string & low, const std::string & high, int n_whole, bool is_beginning) {
    if (low.empty()) {
        return "";
    }
    if (n_whole == 0) {
        return "(\".\" " + between(low, high, -1, false) + (is_all(low, '0') ? ")?" : ")");
    }
    const std::string low_rest = low.substr(1), high_rest = high.substr(1);
    const std::string zeros(low_rest.size(), '0'), nines(low_rest.size(), '9');
    if (is_beginning && n_whole > 1 && low[0] == '0') {
        const std::string shorter = between(low_rest, high[0] == '0' ? high_rest : nines, n_whole - 1, true);
        return high[0] == '0' ? shorter : "(" + shorter + " | " + between("1" + zeros, high, n_whole, false) + ")";
    }
    if (is_all(low, '0') && is_all(high, '9')) {
        return n_whole < 0 ? "[0-9]{1," + std::to_string(low.size()) + "}" : "[0-9]{" + std::to_string(n_whole) + "} " +
            between(low.substr(n_whole), high.substr(n_whole), 0, false);
    }
    std::string result;
    const auto add = [&](char first, char last, const std::string & from, const std::string & to) {
        const std::string rest = between(from, to, std::max(n_whole - 1, -1), false);
        const bool     can_end = n_whole < 0 && !rest.empty() && is_all(from, '0');
        result += (result.empty() ? "([" : " | [") + std::string { first, '-', last, ']', ' ' } +
            (can_end ? "(" + rest + ")?" : rest);
    };
    if (low[0] == high[0]) {
        add(low[0], high[0], low_rest, high_rest);
        return result + ")";
    }
    // the same may follow all digits between first and last
    const char first = (char) (low[0] + (low_rest != zeros)), last = (char) (high[0] - (high_rest != nines));
    if (first > low[0]) {
        add(low[0], low[0], low_rest, nines);
    }
    if (first <= last) {
        add(first, last, zeros, nines);
    }
    if (last < high[0]) {
        add(high[0], high[0], zeros, high_rest);
    }
    return result + ")";
}

std::string h2o_number_range_to_gbnf(const common_json & schema, bool is_integer) {
    const size_t n_digits = is_integer ? MAX_DIGITS : 2*MAX_DIGITS;
    const auto   min      = bound_of(schema, "minimum", "exclusiveMinimum", n_digits);
    const auto   max      = bound_of(schema, "maximum", "exclusiveMaximum", n_digits);
    if (!min && !max) {
        return "";
    }
    std::string result;
    const auto add = [&](const std::string & sign, const std::optional<bound> & from, const std::optional<bound> & to) {
        std::string low  = from ? from->digits : std::string(n_digits, '0');
        std::string high = to ? to->digits : std::string(n_digits, '9');
        const bool  is_any = (!from || (!from->is_exclusive && !from->has_more) || step(low, true)) &&
            (!to || !to->is_exclusive || to->has_more || step(high, false));
        if (is_any && low <= high) {
            result += (result.empty() ? "" : " | ") + sign + between(low, high, MAX_DIGITS, true);
        }
    };
    const bool is_above_zero = max && !max->is_negative && (max->has_more || !is_all(max->digits, '0'));
    if (!min || min->is_negative) {
        add("\"-\" ", is_above_zero ? std::nullopt : max, min);
    }
    if (!max || !max->is_negative) {
        add("", min && min->is_negative ? std::nullopt : min, max);
    }
    if (result.empty()) {
        throw h2o_schema::refusal("minimum", "", "no number of at most 16 digits is within its bounds");
    }
    return result;
}
