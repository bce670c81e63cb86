#pragma once

#include "llama-h2o.h"

#include <cstdint>

// How the heavy hitters of a memory set are chosen: what a position's score sums up, and how it ranks candidates.
// A score is what attention gives to a position. L is the local window.
//
//   SUM        all attention that a position has received so far: H2O (Zhang et al. 2023, arXiv:2306.14048).
//              rank(p) = sum over queries q >= p of w(q, p)
//   DISTANT    the mean over the queries at least L positions later: a position's worth outside of the local window.
//              rank(p) = sum over queries q >= p + L of w(q, p) / (chunk_end - L - p)
//   BLOCK_EMA  blocks of positions, by an exponential moving average of what the chunks gave to them.
//              rank(block) = sum over p in block of s(p),
//              s(p) = alpha*s(p) before the chunk + sum over the chunk's queries of w(q, p)
//              Users see it times (1 - alpha)/(query heads*S), the average of a chunk's mean; ranks are the same.

// whether queries count for some positions only: those up to h2o_query_limit()
inline bool h2o_limits_queries(llama_h2o_scorer scorer) {
    return scorer == LLAMA_H2O_SCORER_DISTANT;
}

inline int64_t h2o_query_limit(llama_h2o_scorer scorer, uint32_t pos, uint32_t L) {
    return scorer == LLAMA_H2O_SCORER_DISTANT ? (int64_t) pos - L : pos;
}

// The rank of a candidate at position pos for the memory set of the chunk that ends at chunk_end; the highest are kept.
inline float h2o_rank(llama_h2o_scorer scorer, float score, uint32_t pos, uint32_t chunk_end, uint32_t L) {
    // a candidate is before the local window
    return scorer == LLAMA_H2O_SCORER_DISTANT ? score/(chunk_end - L - pos) : score;
}
