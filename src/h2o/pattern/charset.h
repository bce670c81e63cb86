#pragma once

#include "h2o/pattern/property.h"

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

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
