#include "h2o/select/scorers.h"

#include <algorithm>
#include <vector>

// How much a key differs from the others of its chunk: KeyDiff (Park et al. 2025, arXiv:2504.15364). Needs no attention.
//   rank(p) = -(k(p)/|k(p)|) . (mean of k/|k| over p's chunk), k without the rotations of RoPE
// RoPE would turn the keys at the ends of a chunk away from the mean, and they would rank high for their place alone.
const h2o_scorer & h2o_scorer_key_diff() {
    static const struct : h2o_scorer {
        const char * name() const override { return "key_diff"; }

        bool uses_attention() const override { return false; }

        // Twice through the keys in their order in the cache, a few that stay in the L1 cache at a time. The mean is turned back
        // with the keys, which have their places in the chunk only by RoPE.
        void score_keys(const h2o_chunk_keys & keys, float * score) const override {
            const uint32_t n_read = std::max(4u, 4096/(keys.n_head*keys.d)/4*4);

            std::vector<float> inv_norms((size_t) keys.n*keys.n_head);
            std::vector<float> dots     ((size_t) keys.n*keys.n_head);
            std::vector<float> sums     ((size_t) keys.n_head*keys.d);

            for (uint32_t i = 0; i < keys.n; i += n_read) {
                const ggml_h2o_keys k = keys.read(i, std::min(n_read, keys.n - i));
                ggml_h2o_keys_add(&k, inv_norms.data() + i*keys.n_head, sums.data());
            }
            for (uint32_t i = 0; i < keys.n; i += n_read) {
                const ggml_h2o_keys k = keys.read(i, std::min(n_read, keys.n - i));
                ggml_h2o_keys_dot(&k, sums.data(), dots.data() + i*keys.n_head);
            }

            for (uint32_t i = 0; i < keys.n; ++i) {
                for (uint32_t h = 0; h < keys.n_head; ++h) {
                    const size_t j = i*keys.n_head + h;
                    score[h*keys.n + i] = -inv_norms[j]*dots[j]/keys.n;
                }
            }
        }
    } scorer;

    return scorer;
}
