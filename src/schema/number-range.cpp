#include "schema/number-range.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

static constexpr size_t MAX_DIGITS = 16;

// A number that is not negative. The first n_whole digits are before the point; "0" is their first only if it is alone.
struct magnitude {
    std::string digits;
    size_t      n_whole;
    bool        is_exclusive;

    char digit(size_t i) const { return i < digits.size() ? digits[i] : '0'; }

    bool has_digits_from(size_t i) const { return digits.find_first_not_of('0', i) != std::string::npos; }
};

// Whether a bound is negative, and its size.
static std::optional<std::pair<bool, magnitude>> bound_of(
        const common_json & schema, const std::string & open, const std::string & closed) {
    const bool is_exclusive = schema.contains(closed);
    if (!is_exclusive && !schema.contains(open)) {
        return std::nullopt;
    }
    const std::string keyword = is_exclusive ? closed : open;
    if (!schema.at(keyword).is_number() || (is_exclusive && schema.contains(open))) {
        throw std::invalid_argument("\"" + keyword + "\" must be a number, and the only bound on its side");
    }
    const std::string text        = schema.at(keyword).dump();
    const size_t      exponent    = std::min(text.find('e'), text.size());
    const bool        is_negative = text[0] == '-';

    std::string digits = text.substr(is_negative, exponent - is_negative);
    long        point  = (long) std::min(digits.find('.'), digits.size());
    digits.erase(std::remove(digits.begin(), digits.end(), '.'), digits.end());
    if (exponent < text.size()) {
        point += std::stol(text.substr(exponent + 1));
    }
    digits.insert(0, (size_t) std::max(1 - point, 0L), '0');
    point = std::max(point, 1L);
    digits.append((size_t) std::max(point - (long) digits.size(), 0L), '0');
    const size_t zeros = std::min(digits.find_first_not_of('0'), (size_t) point - 1);
    const magnitude result = { digits.substr(zeros), (size_t) point - zeros, is_exclusive };
    if (result.digits.size() > result.n_whole + 60) {
        throw std::invalid_argument("\"" + keyword + "\" must not have more than 60 digits after the point");
    }
    return std::make_pair(is_negative && result.has_digits_from(0), result);
}

static std::string digit_class(char first, char last) {
    return first == last ? std::string("\"") + first + "\"" : std::string("[") + first + "-" + last + "]";
}

static std::string join(const std::vector<std::string> & alternatives) {
    std::string result;
    for (const auto & alternative : alternatives) {
        result += (result.empty() ? "" : " | ") + alternative;
    }
    return result;
}

// What can follow the first digits of a number.
struct continuation {
    bool can_end;
    std::vector<std::string> more; // alternatives, each with at least one digit
};

// The number has n digits before the point. min and max: the bounds that its first i digits are equal to; nullptr if
// none.
static continuation after(const magnitude * min, const magnitude * max, size_t i, size_t n, bool is_integer) {
    if (min && !min->is_exclusive && !min->has_digits_from(i)) {
        min = nullptr; // nothing is below it
    }
    const bool min_is_left = min && min->has_digits_from(i);
    const bool max_is_left = max && max->has_digits_from(i);
    continuation result = { i >= n && !min && (!max || max_is_left || !max->is_exclusive), {} };
    if (i == n && is_integer) {
        return result;
    }
    const std::string point = i == n ? "\".\" " : "";
    const std::string any   = "[0-9]{0," + std::to_string(MAX_DIGITS - 1) + "}";
    const std::string zeros = "\"0\"{0," + std::to_string(MAX_DIGITS) + "}";
    if (!min && !max && i >= n) {
        result.more = { point + "[0-9] " + any };
    } else if (!min && !max && i > 0) {
        const auto rest = after(nullptr, nullptr, n, n, is_integer).more;
        result.more = { "[0-9]{" + std::to_string(n - i) + "}" + (rest.empty() ? "" : " (" + rest[0] + ")?") };
    } else if (i >= n && !min_is_left && !max_is_left) {
        if (!max) {
            result.more = { point + zeros + " [1-9] " + any };
        } else if (result.can_end) {
            result.more = { point + "\"0\" " + zeros };
        }
    } else {
        const char low  = min ? min->digit(i) : i == 0 && n > 1 ? '1' : '0';
        const char high = max ? max->digit(i) : '9';
        for (char digit = low; digit <= high; digit++) {
            const magnitude * next_min = digit == low  ? min : nullptr;
            const magnitude * next_max = digit == high ? max : nullptr;
            const char first = digit;
            if (!next_min && !next_max) {
                digit = max ? (char) (high - 1) : high; // the same may follow all of these
            }
            const auto [can_end, more] = after(next_min, next_max, i + 1, n, is_integer);
            if (can_end || !more.empty()) {
                result.more.push_back(point + digit_class(first, digit) +
                    (more.empty() ? "" : " (" + join(more) + ")" + (can_end ? "?" : "")));
            }
        }
    }
    return result;
}

std::string h2o_number_range_to_gbnf(const common_json & schema, bool is_integer) {
    const auto min = bound_of(schema, "minimum", "exclusiveMinimum");
    const auto max = bound_of(schema, "maximum", "exclusiveMaximum");
    if (!min && !max) {
        return "";
    }
    const magnitude zero    = { "0", 1, false };
    const magnitude largest = { "1", MAX_DIGITS + 1, false };

    const auto [min_is_negative, low]  = min.value_or(std::make_pair(true, largest));
    const auto [max_is_negative, high] = max.value_or(std::make_pair(false, largest));

    std::vector<std::string> result;
    const auto add = [&](const std::string & sign, const magnitude & from, const magnitude & to) {
        for (size_t n = from.n_whole; n <= std::min(to.n_whole, MAX_DIGITS); n++) {
            const auto numbers =
                after(n == from.n_whole ? &from : nullptr, n == to.n_whole ? &to : nullptr, 0, n, is_integer);
            for (const auto & alternative : numbers.more) {
                result.push_back(sign + alternative);
            }
        }
    };
    if (!max_is_negative) {
        add("", min_is_negative ? zero : low, high);
    }
    if (min_is_negative) {
        const bool zero_is_outside = high.is_exclusive && !high.has_digits_from(0);
        add("\"-\" ", max_is_negative || zero_is_outside ? high : zero, low);
    }
    if (result.empty()) {
        throw std::invalid_argument("no number of at most 16 digits is within its bounds");
    }
    return join(result);
}
