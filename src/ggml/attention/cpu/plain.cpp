#include "ggml/attention/cpu/plain.h"

#include <algorithm>
#include <numeric>
#include <vector>

void h2o_attn_plain_tile(const h2o_attn_tile & t, const h2o_attn_key_set & keys, const h2o_attn_args<int64_t> & args,
        int64_t row) {
    const int64_t d_v_pad = h2o_attn_pad(t.d_v);

    // f(row of the tile, its number for a key, the key or value) for each that it sees
    const auto for_keys = [&](const h2o_attn_source & source, const auto & f) {
        std::vector<float> x(source.d);
        for (int64_t j = 0; j < t.visible[t.n_rows - 1]; ++j) {
            h2o_attn_read_row(source, j, x.data());
            for (int r = 0; r < t.n_rows; ++r) {
                if (j < t.visible[r]) {
                    f(r, t.logits[r*t.ld + j], x);
                }
            }
        }
    };

    for_keys(keys.k, [&](int r, float & logit, const std::vector<float> & key) {
        const float x = args.scale*std::inner_product(key.begin(), key.end(), args.q_of(row + r, keys.head), 0.0f);
        logit = t.softcap > 0.0f ? t.softcap*tanhf(x/t.softcap) : x;
    });

    for (int r = 0; r < t.n_rows; ++r) {
        float * logits = t.logits + r*t.ld;
        float * end    = logits + t.visible[r];

        const float max = std::accumulate(logits, end, -INFINITY,
                [](float m, float x) { return x > m || std::isnan(x) ? x : m; });

        std::transform(logits, end, logits, [&](float x) { return max == -INFINITY ? 0.0f : expf(x - max); });
        t.m[r] = max;
        t.l[r] = std::accumulate(logits, end, 0.0f);
    }

    std::fill(t.o, t.o + t.n_rows*d_v_pad, 0.0f);
    for_keys(keys.v, [&](int r, float & weight, const std::vector<float> & value) {
        for (size_t i = 0; t.m[r] != -INFINITY && i < value.size(); ++i) {
            t.o[r*d_v_pad + i] += weight/t.l[r]*value[i];
        }
    });
}
