#include "h2o-scorer.h"

#include "scorers/scorers.h"

#include <algorithm>
#include <stdexcept>
#include <string>

int64_t h2o_scorer::limit(uint32_t pos, const h2o_config &) const {
    return pos;
}

void h2o_scorer::score_keys(const float *, uint32_t, uint32_t, uint32_t, float *) const {
    throw std::logic_error("[h2o] this scorer scores attention, not keys");
}

float h2o_scorer::rank(float score, uint32_t, uint32_t, const h2o_config &) const {
    return score;
}

const std::vector<const h2o_scorer *> & h2o_scorers() {
    static const std::vector<const h2o_scorer *> res = {
        &h2o_scorer_key_diff(),
        &h2o_scorer_sum(),
        &h2o_scorer_distant(),
    };
    return res;
}

const h2o_scorer & h2o_fallback_scorer() {
    return h2o_scorer_sum();
}

const h2o_scorer & h2o_find_scorer(const char * name) {
    const std::string wanted = name ? name : "";

    std::string names;
    for (const h2o_scorer * scorer : h2o_scorers()) {
        if (wanted.empty() || wanted == scorer->name()) {
            return *scorer;
        }
        names += (names.empty() ? "" : ", ") + std::string(scorer->name());
    }
    throw std::invalid_argument("[h2o] there is no scorer " + wanted + ", only " + names);
}

void h2o_pool_ranks(const int32_t * pos, uint32_t n, uint32_t radius, float * rank) {
    if (radius == 0) {
        return;
    }

    const std::vector<float> own(rank, rank + n);

    uint32_t first = 0;
    for (uint32_t i = 0; i < n; ++i) {
        while (pos[i] - pos[first] > (int64_t) radius) {
            first++;
        }
        // NaN is never larger: it ranks below everything, also below its neighbours
        float max = own[i];
        for (uint32_t j = first; j < n && pos[j] - pos[i] <= (int64_t) radius; ++j) {
            max = own[j] > max || max != max ? own[j] : max;
        }
        rank[i] = max;
    }
}
