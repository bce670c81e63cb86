#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

// Properties of a code point, as bits: upstream's unicode_cpt_flags, and these of ours beyond them.
enum h2o_property : uint32_t {
    H2O_UPPERCASE_LETTER = 1u << 16, // \p{Lu}
    H2O_LOWERCASE_LETTER = 1u << 17, // \p{Ll}
    H2O_TITLECASE_LETTER = 1u << 18, // \p{Lt}
    H2O_OTHER_LETTER     = 1u << 19, // \p{Lm} and \p{Lo}
    H2O_DECIMAL_DIGIT    = 1u << 20, // \d
};

// A set of code points: the intersection of its parts.
class h2o_charset {
public:
    struct part {
        bool     negated    = false;
        uint32_t properties = 0; // holds code points with one of these,
        uint32_t without    = 0; // or without one of these,
        std::vector<std::pair<uint32_t, uint32_t>> ranges; // or in one of these, ends included
    };

    explicit h2o_charset(part only);

    void intersect(const h2o_charset & other);

    bool contains(uint32_t cpt) const {
        return cpt < ascii.size() ? ascii[cpt] : find(cpt);
    }

private:
    std::vector<part>     parts;
    std::array<bool, 128> ascii;

    bool find(uint32_t cpt) const;
    void fill_ascii();
};
