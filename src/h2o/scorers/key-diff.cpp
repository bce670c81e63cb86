#include "scorers.h"

#include "ggml-cpu.h"

#include <cmath>
#include <vector>

static float dot(const float * a, const float * b, uint32_t n) {
    static const auto vec_dot = ggml_get_type_traits_cpu(GGML_TYPE_F32)->vec_dot;

    float res;
    vec_dot(n, &res, 0, a, 0, b, 0, 1);
    return res;
}

// How much a key differs from the others of its chunk: KeyDiff (Park et al. 2025, arXiv:2504.15364). Needs no attention.
//   rank(p) = -(k(p)/|k(p)|) . (mean of k/|k| over p's chunk), k without the rotations of RoPE
// RoPE would turn the keys at the ends of a chunk away from the mean, and they would rank high for their place alone.
const h2o_scorer & h2o_scorer_key_diff() {
    static const struct : h2o_scorer {
        const char * name() const override { return "key_diff"; }

        bool uses_attention() const override { return false; }

        // goes through k in its order: rows of one head are often 4096 bytes apart, which no cache likes
        void score_keys(const float * k, uint32_t n, uint32_t n_head, uint32_t d, float * score) const override {
            std::vector<float> mean((size_t) n_head*d);

            const float * row = k;
            for (uint32_t i = 0; i < n; ++i) {
                for (uint32_t h = 0; h < n_head; ++h, row += d) {
                    const float sum      = dot(row, row, d);
                    const float inv_norm = sum > 0.0f ? 1.0f/std::sqrt(sum) : 0.0f;

                    score[h*n + i] = inv_norm;
                    for (uint32_t j = 0; j < d; ++j) {
                        mean[h*d + j] += inv_norm/n*row[j];
                    }
                }
            }

            row = k;
            for (uint32_t i = 0; i < n; ++i) {
                for (uint32_t h = 0; h < n_head; ++h, row += d) {
                    score[h*n + i] *= -dot(row, mean.data() + h*d, d);
                }
            }
        }
    } scorer;

    return scorer;
}
