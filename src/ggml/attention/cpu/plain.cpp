#include "ggml/attention/cpu/plain.h"

#include "ggml/attention/cpu/rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

// without their sign, floats are ordered like integers, and NaN comes last
float h2o_attn_peak(const float * x, int64_t n) {
    int32_t max = 0;
    for (int64_t i = 0; i < n; ++i) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        max = std::max(max, bits & INT32_MAX);
    }
    float res;
    memcpy(&res, &max, sizeof(res));
    return res;
}

bool h2o_attn_is_tame(float max_q, const h2o_attn_peaks & max, int64_t d_k) {
    return max_q < 1e30f && max.k < 1e30f && max.v < 1e30f && max_q*max.k*d_k < 1e37f;
}

void h2o_attn_plain_tile(const h2o_attn_tile & t, int64_t head, const h2o_attn_plain_keys & keys, const h2o_attn_plain_keys & further,
        const float * const * q, float scale) {
    const int64_t d_v_pad = h2o_attn_pad(t.d_v);

    struct columns {
        const h2o_attn_plain_keys & keys;
        int64_t         n_query; // from a query's rows to the next one's; 0: they are the same
        const int64_t * hidden;  // or NULL
        const int64_t * visible;
        float         * logits;

        int64_t start(int row) const { return hidden ? hidden[row] : 0; }
    };
    const columns parts[] = {
        { keys,    0,         nullptr,   t.visible,  t.logits },
        { further, t.n_query, t.hidden2, t.visible2, t.logits + t.n_k },
    };

    std::vector<float> row(std::max(t.d_k, t.d_v));

    // f(row of the tile, column), after the key or value was read
    const auto for_keys = [&](const ggml_tensor * x, const columns & part, const auto & f) {
        const int64_t end = *std::max_element(part.visible, part.visible + t.n_rows);
        for (int64_t j = part.start(0); j < end; ++j) {
            const int32_t * read = nullptr;
            for (int r = 0; r < t.n_rows; ++r) {
                if (j < part.start(r) || part.visible[r] <= j) {
                    continue;
                }
                const int32_t * key = part.keys.rows + (t.query_head + r)/t.group*part.n_query + j;
                if (key != read) {
                    h2o_attn_read_row(x, *key, head, row.data());
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
            part.logits[r*t.ld + j] = scale*dot;
        });
    }

    for (int r = 0; r < t.n_rows; ++r) {
        // f(logit) for all that the row sees
        const auto for_visible = [&](const auto & f) {
            for (const columns & part : parts) {
                for (int64_t j = part.start(r); j < part.visible[r]; ++j) {
                    f(part.logits[r*t.ld + j]);
                }
            }
        };

        float max = -INFINITY;
        for_visible([&](float x) { max = x > max || std::isnan(x) ? x : max; });

        float sum = 0.0f;
        for_visible([&](float & x) {
            x = max == -INFINITY ? 0.0f : expf(x - max);
            sum += x;
        });
        for_visible([&](float & x) { x = max == -INFINITY ? 0.0f : x/sum; });

        for (int64_t j = 0; t.sums && j < std::min(t.visible[r], t.counted[r]); ++j) {
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
