#include "h2o/select/select.h"

#include "h2o/select/scorer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

// an int32 that orders like the float, NaN lowest
static int32_t h2o_score_key(float score) {
    if (std::isnan(score)) {
        return INT32_MIN;
    }
    score += 0.0f; // -0 is 0

    int32_t bits;
    memcpy(&bits, &score, sizeof(bits));

    return bits < 0 ? bits ^ INT32_MAX : bits;
}

// A threshold that exactly n keys reach; with ties, the largest one that more reach. No branch depends on a single key.
static int32_t h2o_threshold(const std::vector<int32_t> & key, uint32_t n) {
    int32_t min = key[0];
    int32_t max = key[0];
    for (const int32_t k : key) {
        min = std::min(min, k);
        max = std::max(max, k);
    }

    int64_t low  = min; // reached
    int64_t high = (int64_t) max + 1;
    while (high - low > 1) {
        const int32_t mid = (low + high) >> 1;

        uint32_t n_reached = 0;
        for (const int32_t k : key) {
            n_reached += k >= mid;
        }
        if (n_reached == n) {
            return mid;
        }
        (n_reached >= n ? low : high) = mid;
    }
    return low;
}

uint32_t h2o_select_heavy(const int32_t * pos, const float * score, uint32_t n, uint32_t n_heavy, int32_t * dst) {
    if (n <= n_heavy) {
        std::copy(pos, pos + n, dst);
        return n;
    }
    if (n_heavy == 0) {
        return 0;
    }

    static thread_local std::vector<int32_t> key;

    key.resize(n);
    for (uint32_t i = 0; i < n; ++i) {
        key[i] = h2o_score_key(score[i]);
    }

    const int32_t threshold = h2o_threshold(key, n_heavy);

    uint32_t n_ties = n_heavy;
    for (const int32_t k : key) {
        n_ties -= k > threshold;
    }
    uint32_t n_out = 0;
    for (uint32_t i = 0; i < n && n_out < n_heavy; ++i) {
        const bool is_tie = (key[i] == threshold) & (n_ties > 0);

        dst[n_out] = pos[i];
        n_out  += (key[i] > threshold) | is_tie;
        n_ties -= is_tie;
    }

    return n_out;
}

// Every candidate takes the sum of its block's ranks.
static void sum_blocks(const int32_t * pos, uint32_t n, uint32_t block_tokens, float * rank) {
    for (uint32_t i = 0; i < n && block_tokens > 1;) {
        const int32_t block = pos[i]/(int32_t) block_tokens;

        uint32_t end = i;
        double   sum = 0.0;
        for (; end < n && pos[end]/(int32_t) block_tokens == block; ++end) {
            sum += rank[end];
        }
        std::fill(rank + i, rank + end, (float) sum);
        i = end;
    }
}

// where the local window begins; sinks may reach into it
static uint32_t local_start(const h2o_config & config, uint32_t chunk_end) {
    return chunk_end - std::min(config.local_window, chunk_end);
}

std::vector<int32_t> h2o_select_near(const h2o_config & config, uint32_t chunk_end) {
    const uint32_t n_sink = std::min(config.sink_tokens, chunk_end);
    const uint32_t start  = std::max(n_sink, local_start(config, chunk_end));

    std::vector<int32_t> res(n_sink + chunk_end - start);
    std::iota(res.begin(), res.begin() + n_sink, 0);
    std::iota(res.begin() + n_sink, res.end(), start);

    return res;
}

std::vector<int32_t> h2o_select_memory(const h2o_config & config, uint32_t chunk_end,
        const std::vector<int32_t> & pos, const std::vector<float> & score) {
    std::vector<int32_t> res = h2o_select_near(config, chunk_end);

    const uint32_t n_sink = std::min(config.sink_tokens, chunk_end);

    const auto first = std::lower_bound(pos.begin(), pos.end(), (int32_t) n_sink);
    const auto last  = std::lower_bound(first, pos.end(), (int32_t) local_start(config, chunk_end));

    const std::vector<int32_t> candidates(first, last);

    const uint32_t n_heavy = std::min<size_t>(candidates.size(), config.n_memory(chunk_end) - res.size());
    if (n_heavy == 0) {
        return res;
    }

    std::vector<float> rank(candidates.size());
    for (size_t i = 0; i < candidates.size(); ++i) {
        const uint32_t p = candidates[i];

        const bool is_chunk_sink = p >= config.chunk_size && p % config.chunk_size < config.n_chunk_sink();

        rank[i] = is_chunk_sink ? -INFINITY : h2o_rank(config.scorer, score[first - pos.begin() + i], p, chunk_end,
                config.local_window);
    }
    sum_blocks(candidates.data(), candidates.size(), config.block_tokens, rank.data());

    const auto heavy = res.insert(res.begin() + n_sink, n_heavy, 0);
    h2o_select_heavy(candidates.data(), rank.data(), candidates.size(), n_heavy, &*heavy);

    return res;
}
