#include "scorers.h"

#include "h2o-config.h"

#include <algorithm>

// The mean over the queries at least L positions later: what a position is worth once it has left the local window.
//   rank(p) = sum over queries q >= p + L of w(q, p) / (chunk_end - L - p)
const h2o_scorer & h2o_scorer_distant() {
    static const struct : h2o_scorer {
        const char * name() const override { return "distant"; }

        bool limits_queries() const override { return true; }

        int64_t limit(uint32_t pos, const h2o_config & config) const override {
            return (int64_t) pos - config.local_window;
        }

        float rank(float score, uint32_t pos, uint32_t chunk_end, const h2o_config & config) const override {
            return score/(chunk_end - config.local_window - pos); // a candidate is before the local window
        }
    } scorer;

    return scorer;
}
