#include "ggml/attention/cpu/pack.h"

#include "ggml/attention/cpu/rows.h"

#include "ggml.h"

#include <algorithm>

h2o_attn_peaks h2o_attn_pack_keys(const h2o_attn_kernel & kernel, const ggml_tensor * k, const ggml_tensor * v, int64_t h,
        const int32_t * rows, int64_t key, int64_t n, int64_t n_pad, float * scratch, float * packed_k, float * packed_v) {
    n = std::min<int64_t>(H2O_ATTN_KEYS, n - key);

    const auto pack_rows = [&](const ggml_tensor * t, void (*pack)(const float *, int64_t, int64_t, int64_t, void *), float * packed) {
        const int64_t d = t->ne[0];
        for (int64_t i = 0; i < n; ++i) {
            h2o_attn_read_row(t, rows[key + i], h, scratch + i*d);
        }
        std::fill(scratch + n*d, scratch + H2O_ATTN_KEYS*d, 0.0f);
        pack(scratch, d, key, n_pad, packed);

        return h2o_attn_peak(scratch, n*d);
    };

    return {
        pack_rows(k, kernel.pack_k, packed_k),
        pack_rows(v, kernel.pack_v, packed_v),
    };
}
