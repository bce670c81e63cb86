#include "scorers.h"

#include <cmath>
#include <vector>

// in an order of additions that the compiler can vectorise
static float dot(const float * a, const float * b, uint32_t n) {
    constexpr uint32_t N_LANES = 16;

    float lanes[N_LANES] = {};
    uint32_t i = 0;
    for (; i + N_LANES <= n; i += N_LANES) {
        for (uint32_t j = 0; j < N_LANES; ++j) {
            lanes[j] += a[i + j]*b[i + j];
        }
    }
    float res = 0.0f;
    for (const float lane : lanes) {
        res += lane;
    }
    for (; i < n; ++i) {
        res += a[i]*b[i];
    }
    return res;
}

// How much a key differs from the others of its chunk: KeyDiff (Park et al. 2025, arXiv:2504.15364). Needs no attention.
//   rank(p) = -(k(p)/|k(p)|) . (mean of k/|k| over p's chunk), k without the rotations of RoPE
// RoPE would turn the keys at the ends of a chunk away from the mean, and they would rank high for their place alone.
const h2o_scorer & h2o_scorer_key_diff() {
    static const struct : h2o_scorer {
        const char * name() const override { return "key_diff"; }

        bool uses_attention() const override { return false; }

        void score_keys(const float * k, uint32_t n, uint32_t d, float * score) const override {
            std::vector<float> inv_norm(n);
            std::vector<float> mean(d);

            for (uint32_t i = 0; i < n; ++i) {
                const float * row = k + (size_t) i*d;

                const float sum = dot(row, row, d);
                inv_norm[i] = sum > 0.0f ? 1.0f/std::sqrt(sum) : 0.0f;
                for (uint32_t j = 0; j < d; ++j) {
                    mean[j] += row[j]*inv_norm[i]/n;
                }
            }
            for (uint32_t i = 0; i < n; ++i) {
                score[i] = -dot(k + (size_t) i*d, mean.data(), d)*inv_norm[i];
            }
        }
    } scorer;

    return scorer;
}
