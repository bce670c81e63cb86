#include "h2o-select.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

// a uint32 that orders like the float, NaN lowest
static uint32_t h2o_score_key(float score) {
    if (std::isnan(score)) {
        return 0;
    }
    score += 0.0f; // -0 is 0

    uint32_t bits;
    memcpy(&bits, &score, sizeof(bits));

    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

uint32_t h2o_select_heavy(const int32_t * pos, const float * score, uint32_t n, uint32_t n_heavy, int32_t * dst) {
    if (n <= n_heavy) {
        std::copy(pos, pos + n, dst);
        return n;
    }
    if (n_heavy == 0) {
        return 0;
    }

    static thread_local std::vector<uint32_t> key;
    static thread_local std::vector<uint32_t> order;

    key.resize(n);
    for (uint32_t i = 0; i < n; ++i) {
        key[i] = h2o_score_key(score[i]);
    }

    // the key of the last one that is picked
    order = key;
    std::nth_element(order.begin(), order.begin() + (n_heavy - 1), order.end(), std::greater<uint32_t>());
    const uint32_t threshold = order[n_heavy - 1];

    const uint32_t n_above = std::count_if(order.begin(), order.begin() + n_heavy, [&](uint32_t k) { return k > threshold; });

    uint32_t n_ties = n_heavy - n_above;
    uint32_t n_out  = 0;
    for (uint32_t i = 0; i < n && n_out < n_heavy; ++i) {
        if (key[i] > threshold) {
            dst[n_out++] = pos[i];
        } else if (key[i] == threshold && n_ties > 0) {
            dst[n_out++] = pos[i];
            n_ties--;
        }
    }

    return n_out;
}

// rank[i] = the largest rank of the candidates up to radius positions from pos[i], itself included.
//   pos, rank: [n], pos strictly ascending
static void pool_ranks(const int32_t * pos, uint32_t n, uint32_t radius, float * rank) {
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

std::vector<int32_t> h2o_select_memory(const h2o_config & config, const h2o_scorer & scorer, uint32_t chunk_end,
        const std::vector<int32_t> & pos, const std::vector<float> & score) {
    const int32_t n_sink      = std::min(config.sink_tokens, chunk_end);
    const int32_t local_start = std::max<int32_t>(n_sink, chunk_end - std::min(config.local_window, chunk_end));

    const auto first = std::lower_bound(pos.begin(), pos.end(), n_sink);
    const auto last  = std::lower_bound(pos.begin(), pos.end(), local_start);

    const std::vector<int32_t> candidates(first, last);

    std::vector<float> rank(candidates.size());
    for (size_t i = 0; i < candidates.size(); ++i) {
        const uint32_t p = candidates[i];

        const bool is_chunk_sink = p >= config.chunk_size && p % config.chunk_size < config.n_chunk_sink();

        rank[i] = is_chunk_sink ? -INFINITY : scorer.rank(score[first - pos.begin() + i], p, chunk_end, config.local_window);
    }
    pool_ranks(candidates.data(), candidates.size(), config.pooling, rank.data());

    const uint32_t n_heavy = std::min<size_t>(candidates.size(), config.heavy_budget);

    std::vector<int32_t> res(n_sink + n_heavy + chunk_end - local_start);
    std::iota(res.begin(), res.begin() + n_sink, 0);
    h2o_select_heavy(candidates.data(), rank.data(), candidates.size(), config.heavy_budget, res.data() + n_sink);
    std::iota(res.begin() + n_sink + n_heavy, res.end(), local_start);

    return res;
}
