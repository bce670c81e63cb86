#include "scorers.h"

// What the queries of the chunk that closes would attend to, were they shown everything: each of their n means.
//   rank(p) = sum over the n means q of softmax(q.k)(p)
// The next chunk asks for much the same. Other scorers know only what was shown to a query, so that a position which has
// left the memory set never comes back; here every position is ranked anew. A mean of many queries that RoPE has rotated
// differently keeps their low frequencies only: the far positions that matter, not the near ones, which the local window has.
const h2o_scorer & h2o_scorer_query() {
    static const struct : h2o_scorer {
        const char * name() const override { return "query"; }

        h2o_score_source source() const override { return H2O_SCORE_QUERIES; }
    } scorer;

    return scorer;
}
