#include "common.h"
#include "ops.h"

#include <cmath>

void ggml_compute_forward_max_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src = dst->src[0];

    const auto [first, end] = get_thread_range(params, src);

    for (int64_t row = first; row < end; ++row) {
        const auto * x = (const float *) src->data + row*src->ne[0];

        float max = -INFINITY;
        for (int64_t i = 0; i < src->ne[0]; ++i) {
            max = x[i] > max || std::isnan(x[i]) ? x[i] : max;
        }
        ((float *) dst->data)[row] = max;
    }
}
