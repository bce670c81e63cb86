#pragma once

#include <cstdint>

// How the heavy hitters of a memory set are chosen: what a position's score is made of, and how candidates are ranked by it.
// Every scorer is a file in scorers/ and an entry of h2o_scorers(). L is the local window.
class h2o_scorer {
public:
    virtual ~h2o_scorer() = default;

    virtual const char * name() const = 0;

    // Positions are kept in blocks, by the sums of their ranks.
    virtual bool ranks_blocks() const { return false; }

    // The score of what is kept is multiplied by config.ema_alpha when a chunk is closed.
    virtual bool forgets() const { return false; }

    // A score is what attention gives to a position. A query at position pos adds to those of positions up to this one; only if
    // limits_queries().
    virtual bool    limits_queries() const { return false; }
    virtual int64_t limit(uint32_t pos, uint32_t /*L*/) const { return pos; }

    // The rank of a candidate at position pos for the memory set of the chunk that ends at chunk_end; the highest are kept.
    virtual float rank(float score, uint32_t /*pos*/, uint32_t /*chunk_end*/, uint32_t /*L*/) const { return score; }
};
