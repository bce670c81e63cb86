#include "h2o/pattern/charset.h"

#include "h2o/pattern/letter-case.h"

#include "unicode.h"

#include <algorithm>

static constexpr uint32_t OURS =
    H2O_UPPERCASE_LETTER | H2O_LOWERCASE_LETTER | H2O_TITLECASE_LETTER | H2O_OTHER_LETTER | H2O_DECIMAL_DIGIT;

static uint32_t properties_of(uint32_t cpt, uint32_t asked) {
    const unicode_cpt_flags flags = unicode_cpt_flags_from_cpt(cpt);
    uint32_t result = flags.as_uint();
    if ((asked & OURS) && flags.is_letter) {
        const uint32_t with_case = h2o_letter_case(cpt);
        result |= with_case ? with_case : H2O_OTHER_LETTER;
    } else if ((asked & OURS) && flags.is_number && h2o_is_decimal_digit(cpt)) {
        result |= H2O_DECIMAL_DIGIT;
    }
    return result;
}

static bool holds(const h2o_charset::part & part, uint32_t cpt) {
    const auto after = std::upper_bound(part.ranges.begin(), part.ranges.end(), cpt,
        [](uint32_t c, const auto & range) { return c < range.first; });
    const bool in_range = after != part.ranges.begin() && cpt <= std::prev(after)->second;
    const uint32_t properties = properties_of(cpt, part.properties | part.without);
    return (in_range || (properties & part.properties) || (~properties & part.without)) != part.negated;
}

h2o_charset::h2o_charset(part only) {
    // sorted and without overlaps, to be searched in halves
    std::sort(only.ranges.begin(), only.ranges.end());
    std::vector<std::pair<uint32_t, uint32_t>> merged;
    for (const auto & range : only.ranges) {
        if (!merged.empty() && range.first <= merged.back().second) {
            merged.back().second = std::max(merged.back().second, range.second);
        } else {
            merged.push_back(range);
        }
    }
    only.ranges = std::move(merged);
    parts.push_back(std::move(only));
    fill_ascii();
}

void h2o_charset::intersect(const h2o_charset & other) {
    parts.insert(parts.end(), other.parts.begin(), other.parts.end());
    fill_ascii();
}

bool h2o_charset::find(uint32_t cpt) const {
    return std::all_of(parts.begin(), parts.end(), [cpt](const part & p) { return holds(p, cpt); });
}

void h2o_charset::fill_ascii() {
    for (uint32_t cpt = 0; cpt < ascii.size(); ++cpt) {
        ascii[cpt] = find(cpt);
    }
}
