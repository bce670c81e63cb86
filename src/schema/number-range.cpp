#include "schema/number-range.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <utility>
#include <vector>

static constexpr size_t MAX_DIGITS = 16;

// A number that is not negative, in decimal digits. No zeros stand at the beginning of the whole part, but "0", nor at
// the end of the fraction.
struct magnitude {
    std::string whole;
    std::string fraction;
    bool        is_exclusive;

    bool is_zero() const { return whole == "0" && fraction.empty(); }
};

static int compare(const std::string & a, const std::string & b) {
    return a.size() != b.size() ? (a.size() < b.size() ? -1 : 1) : a.compare(b);
}

static int compare(const magnitude & a, const magnitude & b) {
    const int whole = compare(a.whole, b.whole);
    return whole != 0 ? whole : a.fraction.compare(b.fraction);
}

// by 1 or -1
static std::string step(std::string whole, int by) {
    const char last = by > 0 ? '9' : '0';
    size_t i = whole.size();
    while (i > 0 && whole[i - 1] == last) {
        whole[--i] = by > 0 ? '0' : '9';
    }
    if (i > 0) {
        whole[i - 1] = (char) (whole[i - 1] + by);
    } else {
        whole.insert(0, "1");
    }
    return whole.size() > 1 && whole[0] == '0' ? whole.substr(1) : whole;
}

static std::pair<bool, magnitude> parse(const h2o_number_bound & bound) {
    const std::string & text     = bound.number;
    const size_t        exponent = std::min(text.find_first_of("eE"), text.size());
    const bool is_negative = !text.empty() && text[0] == '-';

    std::string digits = text.substr(is_negative, exponent - is_negative);
    long        point  = (long) std::min(digits.find('.'), digits.size());
    digits.erase(std::remove(digits.begin(), digits.end(), '.'), digits.end());
    if (exponent < text.size()) {
        // more than a double has
        point += std::clamp(std::strtol(text.c_str() + exponent + 1, nullptr, 10), -400L, 400L);
    }
    if (point < 0) {
        digits.insert(0, (size_t) -point, '0');
        point = 0;
    }
    digits.append((size_t) std::max(point - (long) digits.size(), 0L), '0');
    magnitude result = { digits.substr(0, point), digits.substr(point), bound.is_exclusive };
    result.whole.erase(0, std::min(result.whole.find_first_not_of('0'), result.whole.size()));
    if (result.whole.empty()) {
        result.whole = "0";
    }
    result.fraction.erase(result.fraction.find_last_not_of('0') + 1);
    if (result.fraction.size() > 60) {
        throw std::invalid_argument("a bound must not have more than 60 digits after the point, got " + text);
    }
    return { is_negative && !result.is_zero(), result };
}

static std::string digit_class(char first, char last) {
    return first == last ? std::string("\"") + first + "\"" : std::string("[") + first + "-" + last + "]";
}

static std::string any_digits(size_t n) {
    return n == 0 ? "" : "[0-9]{" + std::to_string(n) + "}";
}

static std::string join(const std::vector<std::string> & alternatives) {
    std::string result;
    for (const auto & alternative : alternatives) {
        result += (result.empty() ? "" : " | ") + alternative;
    }
    return alternatives.size() > 1 ? "(" + result + ")" : result;
}

// digits from a to b, which have the same length
static std::string same_length(const std::string & a, const std::string & b) {
    const size_t n = a.size();
    if (n == 0) {
        return "";
    }
    if (a == std::string(n, '0') && b == std::string(n, '9')) {
        return any_digits(n);
    }
    const auto alternative = [](const std::string & digit, const std::string & rest) {
        return rest.empty() ? digit : digit + " " + rest;
    };
    if (a[0] == b[0]) {
        return alternative(digit_class(a[0], a[0]), same_length(a.substr(1), b.substr(1)));
    }
    const std::string zeros(n - 1, '0');
    const std::string nines(n - 1, '9');
    char first = a[0];
    char last  = b[0];
    std::vector<std::string> alternatives;
    if (a.substr(1) != zeros) {
        alternatives.push_back(alternative(digit_class(first, first), same_length(a.substr(1), nines)));
        first++;
    }
    if (b.substr(1) != nines) {
        alternatives.push_back(alternative(digit_class(last, last), same_length(zeros, b.substr(1))));
        last--;
    }
    if (first <= last) {
        alternatives.push_back(alternative(digit_class(first, last), any_digits(n - 1)));
    }
    return join(alternatives);
}

// whole numbers from a to b; empty if there are none
static std::string whole_range(const std::string & a, const std::string & b) {
    std::vector<std::string> alternatives;
    for (size_t n = a.size(); n <= b.size(); n++) {
        const std::string first = n == a.size() ? a : "1" + std::string(n - 1, '0');
        const std::string last  = n == b.size() ? b : std::string(n, '9');
        if (first <= last) {
            alternatives.push_back(same_length(first, last));
        }
    }
    return join(alternatives);
}

// Digits of a fraction from the i-th on. min and max: the bounds that the digits so far are equal to; nullptr if none.
// Sets can_end if the fraction may be complete here. Returns alternatives with at least one digit more.
static std::vector<std::string> fraction_range(const magnitude * min, const magnitude * max, size_t i, bool & can_end) {
    const auto left = [&](const magnitude * bound) { return bound && bound->fraction.size() > i; };
    can_end = (!min || (!left(min) && !min->is_exclusive)) && (!max || left(max) || !max->is_exclusive);
    if (!min && !max) {
        return { "[0-9]{1," + std::to_string(MAX_DIGITS) + "}" };
    }
    const std::string zeros = "\"0\"{0," + std::to_string(MAX_DIGITS) + "}";
    const std::string any   = "[0-9]{0," + std::to_string(MAX_DIGITS) + "}";
    if (!left(min) && !left(max)) {
        if (!max) {
            return { min->is_exclusive ? zeros + " [1-9] " + any : "[0-9] " + any };
        }
        return can_end ? std::vector<std::string>{ "\"0\" " + zeros } : std::vector<std::string>();
    }
    const char low  = left(min) ? min->fraction[i] : '0';
    const char high = left(max) ? max->fraction[i] : max ? '0' : '9';

    std::vector<std::string> result;
    for (char digit = low; digit <= high; digit++) {
        const magnitude * next_min = min && digit == low  ? min : nullptr;
        const magnitude * next_max = max && digit == high ? max : nullptr;
        if (!next_min && !next_max) {
            const char last = max ? (char) (high - 1) : high;
            result.push_back(digit_class(digit, last) + " " + any);
            digit = last;
            continue;
        }
        bool ends = false;
        const auto rest = fraction_range(next_min, next_max, i + 1, ends);
        if (ends || !rest.empty()) {
            result.push_back(
                digit_class(digit, digit) + (rest.empty() ? "" : " (" + join(rest) + ")" + (ends ? "?" : "")));
        }
    }
    for (auto & alternative : result) {
        alternative = "(" + alternative + ")";
    }
    return result;
}

// a whole number and a fraction within bounds; empty if there are none
static std::string with_fraction(const std::string & whole, const magnitude * min, const magnitude * max) {
    bool can_end = false;
    const auto digits = fraction_range(min, max, 0, can_end);
    if (digits.empty()) {
        return can_end ? whole : "";
    }
    return whole + " (\".\" (" + join(digits) + "))" + (can_end ? "?" : "");
}

// Magnitudes from min to max as alternatives.
static std::vector<std::string> magnitude_range(const magnitude & min, const magnitude & max, bool is_integer) {
    if (is_integer) {
        const std::string first = min.is_exclusive || !min.fraction.empty() ? step(min.whole, 1) : min.whole;
        if (max.is_exclusive && max.is_zero()) {
            return {};
        }
        const std::string last = max.is_exclusive && max.fraction.empty() ? step(max.whole, -1) : max.whole;
        if (compare(first, last) > 0) {
            return {};
        }
        return { whole_range(first, last) };
    }
    if (compare(min, max) > 0) {
        return {};
    }
    std::vector<std::string> result;
    const auto add = [&](const std::string & alternative) {
        if (!alternative.empty()) {
            result.push_back(alternative);
        }
    };
    if (min.whole == max.whole) {
        add(with_fraction("\"" + min.whole + "\"", &min, &max));
        return result;
    }
    add(with_fraction("\"" + min.whole + "\"", &min, nullptr));
    const std::string first = step(min.whole, 1);
    const std::string last  = step(max.whole, -1);
    if (compare(first, last) <= 0) {
        add(with_fraction("(" + whole_range(first, last) + ")", nullptr, nullptr));
    }
    add(with_fraction("\"" + max.whole + "\"", nullptr, &max));
    return result;
}

std::string h2o_number_range_to_gbnf(const std::optional<h2o_number_bound> & min,
        const std::optional<h2o_number_bound> & max, bool is_integer) {
    const magnitude zero    = { "0", "", false };
    const magnitude largest = { std::string(MAX_DIGITS, '9'), std::string(MAX_DIGITS, '9'), false };

    const auto low  = min ? parse(*min) : std::make_pair(true, largest);
    const auto high = max ? parse(*max) : std::make_pair(false, largest);
    const auto at_most_largest = [&](const magnitude & m) { return compare(m, largest) > 0 ? largest : m; };

    std::vector<std::string> result;
    if (!high.first && (low.first || compare(low.second, largest) <= 0)) {
        result = magnitude_range(low.first ? zero : low.second, at_most_largest(high.second), is_integer);
    }
    const bool is_zero_outside = high.second.is_zero() && high.second.is_exclusive;
    if (low.first && (!high.first || compare(high.second, largest) <= 0)) {
        const magnitude from = high.first || is_zero_outside ? high.second : zero;
        for (const auto & alternative : magnitude_range(from, at_most_largest(low.second), is_integer)) {
            result.push_back("\"-\" " + alternative);
        }
    }
    return join(result);
}
