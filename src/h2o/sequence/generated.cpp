#include "h2o/sequence/generated.h"

#include <algorithm>
#include <utility>

std::vector<float> h2o_generated::sum(uint32_t n, size_t n_columns) const {
    if (folded.empty() && n == 0) {
        return {};
    }
    std::vector<float> res(n_head_kv*n_columns);

    const auto add = [&](const std::vector<float> & sums) {
        const size_t n_own = sums.size()/n_head_kv;
        for (uint32_t h = 0; h < n_head_kv; ++h) {
            for (size_t i = 0; i < std::min(n_own, n_columns); ++i) {
                res[h*n_columns + i] += sums[h*n_own + i];
            }
        }
    };
    add(folded);
    for (uint32_t i = 0; i < n; ++i) {
        add(tokens[i]);
    }
    return res;
}

void h2o_generated::fold(uint32_t n) {
    if (n > 0) {
        folded = sum(n, tokens[n - 1].size()/n_head_kv);
        tokens.erase(tokens.begin(), tokens.begin() + n);
    }
}

void h2o_generated::assign(std::vector<float> sums) {
    folded = std::move(sums);
    tokens.clear();
}
