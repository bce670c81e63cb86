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
        int64_t         n_list;  // from a query's list to the next one's; 0: they have the same keys
        const int64_t * hidden;  // or NULL
        const int64_t * visible; // or NULL: none is
        float         * logits;

        int64_t start(int row) const { return hidden ? hidden[row] : 0; }
        int64_t end  (int row) const { return visible ? visible[row] : 0; }
    };
    const columns parts[] = {
        { own,     0,         t.own.hidden,     t.own.visible,                                     t.logits },
        { further, t.lists.n, t.further.hidden, t.lists.n > 0 ? t.lists.visible : t.further.visible, t.logits + t.own.n },
    };

    std::vector<float> row(std::max(t.d_k, t.d_v));

    // f(row of the tile, column), after the key or value was read
    const auto for_keys = [&](const ggml_tensor * x, const columns & part, const auto & f) {
        const int64_t end = part.visible ? *std::max_element(part.visible, part.visible + t.n_rows) : 0;
        for (int64_t j = part.start(0); j < end; ++j) {
            int64_t read = -1;
            for (int r = 0; r < t.n_rows; ++r) {
                if (j < part.start(r) || part.end(r) <= j) {
                    continue;
                }
                const int64_t key = part.n_list > 0 ? (t.lists.query_head + r)/t.lists.group*part.n_list + j : j;
                if (key != read) {
                    h2o_attn_read_row(x, part.keys.rows[key], head, row.data());
                    read = key;
                }
                f(r, j);
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
                for (int64_t j = part.start(r); j < part.end(r); ++j) {
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
