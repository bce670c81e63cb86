#include "h2o/select/select.h"

#include "h2o/select/scorer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

// The n_heavy positions of highest rank, ascending. Of equal ranks the lower position wins; NaN ranks lowest.
static void select_heavy(const int32_t * pos, const std::vector<float> & rank, uint32_t n_heavy, int32_t * dst) {
    std::vector<uint32_t> order(rank.size());
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(order.begin(), order.begin() + n_heavy - 1, order.end(), [&](uint32_t a, uint32_t b) {
        if (std::isnan(rank[a]) || std::isnan(rank[b])) {
            return std::isnan(rank[a]) == std::isnan(rank[b]) ? a < b : std::isnan(rank[b]);
        }
        return rank[a] != rank[b] ? rank[a] > rank[b] : a < b;
    });
    std::sort(order.begin(), order.begin() + n_heavy);
    std::transform(order.begin(), order.begin() + n_heavy, dst, [&](uint32_t i) { return pos[i]; });
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
