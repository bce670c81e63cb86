#include "ggml/attention/cpu/plain.h"

#include "ggml/attention/cpu/rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

void h2o_attn_plain_tile(const h2o_attn_tile & t, int64_t head, const h2o_attn_plain_keys & own, const h2o_attn_plain_keys & further,
        const float * const * q, float scale) {
    const int64_t d_v_pad = h2o_attn_pad(t.d_v);

    struct columns {
        const h2o_attn_plain_keys & keys;
        const int64_t * visible; // or NULL: none is
        float         * logits;

        int64_t end(int row) const { return visible ? visible[row] : 0; }
    };
    const columns parts[] = {
        { own,     t.own.visible,     t.logits },
        { further, t.further.visible, t.logits + t.own.n },
    };

    std::vector<float> row(std::max(t.d_k, t.d_v));

    // f(row of the tile, column), after the key or value was read
    const auto for_keys = [&](const ggml_tensor * x, const columns & part, const auto & f) {
        const int64_t end = part.end(t.n_rows - 1);
        for (int64_t j = 0; j < end; ++j) {
            h2o_attn_read_row(x, part.keys.rows[j], head, row.data());
            for (int r = 0; r < t.n_rows; ++r) {
                if (j < part.end(r)) {
                    f(r, j);
                }
            }
        }
    };

    for (const columns & part : parts) {
        for_keys(part.keys.k, part, [&](int r, int64_t j) {
            float dot = 0.0f;
            for (int64_t i = 0; i < t.d_k; ++i) {
                dot += q[r][i]*row[i];
            }
            part.logits[r*t.ld + j] = t.softcap > 0.0f ? t.softcap*tanhf(scale*dot/t.softcap) : scale*dot;
        });
    }

    for (int r = 0; r < t.n_rows; ++r) {
        // f(logit) for all that the row sees
        const auto for_visible = [&](const auto & f) {
            for (const columns & part : parts) {
                for (int64_t j = 0; j < part.end(r); ++j) {
                    f(part.logits[r*t.ld + j]);
                }
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

        for (int64_t j = 0; t.sums && j < std::min(t.own.visible[r], t.counted[r]); ++j) {
            t.sums[j] += t.logits[r*t.ld + j];
        }
        t.m[r] = max;
        t.l[r] = sum;
    }

    std::fill(t.o, t.o + t.n_rows*d_v_pad, 0.0f);
    for (const columns & part : parts) {
        for_keys(part.keys.v, part, [&](int r, int64_t j) {
            for (int64_t i = 0; t.m[r] != -INFINITY && i < t.d_v; ++i) {
                t.o[r*d_v_pad + i] += part.logits[r*t.ld + j]*row[i];
            }
        });
    }
}
