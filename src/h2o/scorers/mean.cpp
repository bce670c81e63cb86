#include "scorers.h"

// The mean over the queries that saw the position, so that being old is no merit (as NORM_SUM of OpenVINO GenAI).
//   rank(p) = sum over queries q >= p of w(q, p) / (chunk_end - p)
const h2o_scorer & h2o_scorer_mean() {
    static const struct : h2o_scorer {
        const char * name() const override { return "mean"; }

        float rank(float score, uint32_t pos, uint32_t chunk_end, const h2o_config &) const override {
            return score/(chunk_end - pos);
        }
    } scorer;

    return scorer;
}
