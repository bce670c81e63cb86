#pragma once

#include <cstdint>
#include <vector>

struct h2o_config;

// How the heavy hitters of a memory set are chosen: what a position's score is made of, and how candidates are ranked by it.
// Every scorer is a file in scorers/ and an entry of h2o_scorers().
class h2o_scorer {
public:
    virtual ~h2o_scorer() = default;

    virtual const char * name() const = 0;

    // A score is what attention gives to a position, or what score_keys() makes of its key.
    virtual bool uses_attention() const { return true; }

    // Of attention, a query at position pos adds to the scores of positions up to this one; only if limits_queries().
    virtual bool    limits_queries() const { return false; }
    virtual int64_t limit(uint32_t pos, const h2o_config & config) const;

    // score [n_head, n] of the keys [n, n_head, d] of a complete chunk; only if not uses_attention()
    virtual void score_keys(const float * k, uint32_t n, uint32_t n_head, uint32_t d, float * score) const;

    // The rank of a candidate at position pos for the memory set of the chunk that ends at chunk_end; the highest are kept.
    virtual float rank(float score, uint32_t pos, uint32_t chunk_end, const h2o_config & config) const;
};

// all of them, the default first
const std::vector<const h2o_scorer *> & h2o_scorers();

// Scores attention: for a layer whose keys the chosen scorer cannot score.
const h2o_scorer & h2o_fallback_scorer();

// NULL or "" is the default. Throws std::invalid_argument, with the names, if there is none of that name.
const h2o_scorer & h2o_find_scorer(const char * name);

// rank[i] = the largest rank of the candidates up to radius positions from pos[i], itself included.
//   pos, rank: [n], pos strictly ascending
void h2o_pool_ranks(const int32_t * pos, uint32_t n, uint32_t radius, float * rank);
