#pragma once

#include "ggml/keys/keys.h"

#include <cstdint>
#include <functional>
#include <stdexcept>

// The keys of a complete chunk: n of them, read a few at a time.
struct h2o_chunk_keys {
    uint32_t n;
    uint32_t n_head;
    uint32_t d;

    // the i-th to (i + n)-th, in place where the host can read them; they are there until the next call
    std::function<ggml_h2o_keys(uint32_t i, uint32_t n)> read;
};

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

    // A score is what attention gives to a position, or what score_keys() makes of its key.
    virtual bool uses_attention() const { return true; }

    // Of attention, a query at position pos adds to the scores of positions up to this one; only if limits_queries().
    virtual bool    limits_queries() const { return false; }
    virtual int64_t limit(uint32_t pos, uint32_t /*L*/) const { return pos; }

    // score [n_head, n]; only if not uses_attention()
    virtual void score_keys(const h2o_chunk_keys & /*keys*/, float * /*score*/) const {
        throw std::logic_error("[h2o] this scorer scores attention, not keys");
    }

    // The rank of a candidate at position pos for the memory set of the chunk that ends at chunk_end; the highest are kept.
    virtual float rank(float score, uint32_t /*pos*/, uint32_t /*chunk_end*/, uint32_t /*L*/) const { return score; }
};
