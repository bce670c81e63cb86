#include "h2o/select/scorers.h"

// Blocks of positions, by an exponential moving average of what the chunks gave to them:
//   rank(block) = sum over p in block of s(p),  s(p) = alpha*s(p) before the chunk + sum over the chunk's queries of w(q, p)
// What a user is told is (1 - alpha)/(query heads*S) of it, the average of a chunk's mean; that changes no rank.
const h2o_scorer & h2o_scorer_block_ema() {
    static const struct : h2o_scorer {
        const char * name() const override { return "block_ema"; }

        bool ranks_blocks() const override { return true; }

        bool forgets() const override { return true; }
    } scorer;

    return scorer;
}
