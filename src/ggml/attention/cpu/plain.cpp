#include "ggml/attention/cpu/plain.h"

#include <algorithm>
#include <vector>

void h2o_attn_plain_tile(const h2o_attn_tile & t, const h2o_attn_key_set & keys, const h2o_attn_key_set & extra,
        const float * const * q, float scale) {
    const int64_t d_v_pad = h2o_attn_pad(t.d_v);

    const auto n_visible = [&](int kind, int row) { return t.keys[kind].n > 0 ? t.keys[kind].visible[row] : 0; };
    const auto logits_of = [&](int kind, int row) { return t.logits + row*t.ld + (kind == 0 ? 0 : t.keys[0].n); };

    // f(row of the tile, its number for a key, the key or value) for each that it sees
    const auto for_keys = [&](h2o_attn_source h2o_attn_key_set::* source, const auto & f) {
        std::vector<float> row;
        for (int kind = 0; kind < 2; ++kind) {
            const h2o_attn_key_set & from = kind == 0 ? keys : extra;

            const int64_t end = n_visible(kind, t.n_rows - 1);
            for (int64_t j = 0; j < end; ++j) {
                row.resize((from.*source).d);
                h2o_attn_read_row(from.*source, j, row.data());
                for (int r = 0; r < t.n_rows; ++r) {
                    if (j < n_visible(kind, r)) {
                        f(r, logits_of(kind, r)[j], row);
                    }
                }
            }
        }
    };

    for_keys(&h2o_attn_key_set::k, [&](int r, float & logit, const std::vector<float> & key) {
        float dot = 0.0f;
        for (size_t i = 0; i < key.size(); ++i) {
            dot += q[r][i]*key[i];
        }
        logit = t.softcap > 0.0f ? t.softcap*tanhf(scale*dot/t.softcap) : scale*dot;
    });

    for (int r = 0; r < t.n_rows; ++r) {
        // f(logit) for all that the row sees
        const auto for_visible = [&](const auto & f) {
            for (int kind = 0; kind < 2; ++kind) {
                std::for_each(logits_of(kind, r), logits_of(kind, r) + n_visible(kind, r), f);
            }
        };

        float max = t.sinks ? t.sinks[r] : -INFINITY;
        for_visible([&](float x) { max = x > max || std::isnan(x) ? x : max; });

        float sum = t.sinks && max != -INFINITY ? expf(t.sinks[r] - max) : 0.0f;
        for_visible([&](float & x) {
            x = max == -INFINITY ? 0.0f : expf(x - max);
            sum += x;
        });
        for_visible([&](float & x) { x = max == -INFINITY ? 0.0f : x/sum; });

        for (int64_t j = 0; t.sums && j < std::min(n_visible(0, r), t.counted[r]); ++j) {
            t.sums[j] += t.logits[r*t.ld + j];
        }
        t.m[r] = max;
        t.l[r] = sum;
    }

    std::fill(t.o, t.o + t.n_rows*d_v_pad, 0.0f);
    for_keys(&h2o_attn_key_set::v, [&](int r, float & weight, const std::vector<float> & value) {
        for (size_t i = 0; t.m[r] != -INFINITY && i < value.size(); ++i) {
            t.o[r*d_v_pad + i] += weight*value[i];
        }
    });
}
