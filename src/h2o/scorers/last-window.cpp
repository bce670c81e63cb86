#include "scorers.h"

#include "h2o-config.h"

#include <algorithm>

// What the last 64 queries of the chunk attend to: SnapKV (Li et al. 2024, arXiv:2404.14469), at every chunk's end.
//   rank(p) = sum over the last min(64, S) queries q >= p of the last chunk of w(q, p)
const h2o_scorer & h2o_scorer_last_window() {
    static const struct : h2o_scorer {
        const char * name() const override { return "last_window"; }

        bool limits_queries() const override { return true; }

        int64_t limit(uint32_t pos, const h2o_config & config) const override {
            const uint32_t n_counted = std::min<uint32_t>(64, config.chunk_size);

            return pos % config.chunk_size >= config.chunk_size - n_counted ? (int64_t) pos : -1;
        }

        float carry() const override { return 0.0f; }
    } scorer;

    return scorer;
}
