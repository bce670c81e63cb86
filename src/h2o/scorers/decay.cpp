#include "scorers.h"

// What chunks gave, the last one most: an exponential moving sum.
//   rank(p) = sum over chunks j of 0.5^(c - j) * (sum over queries q >= p of chunk j of w(q, p)), c the last chunk
const h2o_scorer & h2o_scorer_decay() {
    static const struct : h2o_scorer {
        const char * name() const override { return "decay"; }

        float carry() const override { return 0.5f; }
    } scorer;

    return scorer;
}
