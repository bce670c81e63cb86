#include "h2o/store/codec/times.h"

#include <algorithm>
#include <cmath>

void h2o_codec_times::add(float time) {
    if (us.size() < N_MAX) {
        us.push_back(time);
    } else {
        us[n_added%N_MAX] = time;
    }
    n_added++;
}

h2o_codec_percentiles h2o_codec_times::percentiles() const {
    if (us.empty()) {
        return {};
    }
    std::vector<float> sorted = us;
    std::sort(sorted.begin(), sorted.end());

    const auto of = [&](double share) { return sorted[(size_t) std::ceil(share*sorted.size()) - 1]; };
    return { of(0.50), of(0.95), of(0.99) };
}
