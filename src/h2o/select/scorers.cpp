#include "h2o/select/scorers.h"

#include <stdexcept>
#include <string>

const std::vector<const h2o_scorer *> & h2o_scorers() {
    static const std::vector<const h2o_scorer *> res = {
        &h2o_scorer_distant(),
        &h2o_scorer_sum(),
        &h2o_scorer_block_ema(),
    };
    return res;
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
