#include "h2o/select/select.h"

#include "h2o/select/scorer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

// an int32 that orders like the float, NaN lowest
static int32_t score_key(float score) {
    if (std::isnan(score)) {
        return INT32_MIN;
    }
    score += 0.0f; // -0 is 0

    int32_t bits;
    memcpy(&bits, &score, sizeof(bits));

    return bits < 0 ? bits ^ INT32_MAX : bits;
}

// A threshold that exactly n keys reach; with ties, the largest one that more reach. No branch depends on a single key.
static int32_t threshold_of(const std::vector<int32_t> & key, uint32_t n) {
    int64_t low  = INT32_MIN; // reached
    int64_t high = (int64_t) INT32_MAX + 1;
    while (high - low > 1) {
        const int32_t mid = (low + high) >> 1;

        uint32_t n_reached = 0;
        for (const int32_t k : key) {
            n_reached += k >= mid;
        }
        if (n_reached == n) {
            return mid;
        }
        (n_reached > n ? low : high) = mid;
    }
    return low;
}

// The n_heavy positions of highest rank, ascending. Of equal ranks the lower position wins; NaN ranks lowest.
static void select_heavy(const int32_t * pos, const std::vector<float> & rank, uint32_t n_heavy, int32_t * dst) {
    static thread_local std::vector<int32_t> key;

    key.resize(rank.size());
    std::transform(rank.begin(), rank.end(), key.begin(), score_key);

    const int32_t threshold = threshold_of(key, n_heavy);

    uint32_t n_ties = n_heavy;
    for (const int32_t k : key) {
        n_ties -= k > threshold;
    }
    uint32_t n_out = 0;
    for (uint32_t i = 0; n_out < n_heavy; ++i) {
        const bool is_tie = (key[i] == threshold) & (n_ties > 0);

        dst[n_out] = pos[i];
        n_out  += (key[i] > threshold) | is_tie;
        n_ties -= is_tie;
    }
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

    const uint32_t n_heavy = std::min<size_t>(last - first, config.n_memory(chunk_end) - res.size());
    if (n_heavy == 0) {
        return res;
    }

    const uint32_t     n_chunk_sink = config.n_chunk_sink();
    std::vector<float> rank(score.begin() + (first - pos.begin()), score.begin() + (last - pos.begin()));
    for (size_t i = 0; i < rank.size(); ++i) {
        const uint32_t p = first[i];

        const bool is_chunk_sink = n_chunk_sink > 0 && p >= config.chunk_size && p % config.chunk_size < n_chunk_sink;

        rank[i] = is_chunk_sink ? -INFINITY : h2o_rank(config.scorer, rank[i], p, chunk_end, config.local_window);
    }
    sum_blocks(&*first, rank.size(), config.block_tokens, rank.data());

    const auto heavy = res.insert(res.begin() + n_sink, n_heavy, 0);
    select_heavy(&*first, rank, n_heavy, &*heavy);

    return res;
}
