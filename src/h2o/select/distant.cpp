#include "h2o/select/scorers.h"

// The mean over the queries at least L positions later: what a position is worth once it has left the local window.
//   rank(p) = sum over queries q >= p + L of w(q, p) / (chunk_end - L - p)
const h2o_scorer & h2o_scorer_distant() {
    static const struct : h2o_scorer {
        const char * name() const override { return "distant"; }

        bool limits_queries() const override { return true; }

        int64_t limit(uint32_t pos, uint32_t L) const override {
            return (int64_t) pos - L;
        }

        float rank(float score, uint32_t pos, uint32_t chunk_end, uint32_t L) const override {
            return score/(chunk_end - L - pos); // a candidate is before the local window
        }
    } scorer;

    return scorer;
}
