#include "h2o/select/scorers.h"

// All attention that a position has received so far: H2O (Zhang et al. 2023, arXiv:2306.14048).
//   rank(p) = sum over queries q >= p of w(q, p)
const h2o_scorer & h2o_scorer_sum() {
    static const struct : h2o_scorer {
        const char * name() const override { return "sum"; }
    } scorer;

    return scorer;
}
