#include "h2o/sequence/generated.h"

#include <algorithm>

std::vector<float> h2o_generated::sum(uint32_t n, size_t n_columns) const {
    const auto & sums = totals[n];
    if (sums.empty()) {
        return {};
    }
    const size_t n_own = sums.size()/n_head_kv;

    std::vector<float> res(n_head_kv*n_columns);
    for (uint32_t h = 0; h < n_head_kv; ++h) {
        std::copy_n(sums.begin() + h*n_own, std::min(n_own, n_columns), res.begin() + h*n_columns);
    }
    return res;
}

void h2o_generated::append(const float * sums, size_t stride, size_t n_columns) {
    auto total = sum(n_tokens(), n_columns);
    total.resize(n_head_kv*n_columns);
    for (uint32_t h = 0; h < n_head_kv; ++h) {
        for (size_t i = 0; i < n_columns; ++i) {
            total[h*n_columns + i] += sums[h*stride + i];
        }
    }
    totals.push_back(std::move(total));
}
