#include "ggml/low-rank/low-rank.h"

#include "ggml-backend.h"
#include "ggml/low-rank/kernels/compute.h"

#include <string.h>

#define MIN_TOKENS 8 // fewer are not worth transposing B

struct ggml_tensor * ggml_h2o_add_low_rank(
        struct ggml_context * ctx,
        struct ggml_tensor  * sum,
        struct ggml_tensor  * b,
        struct ggml_tensor  * y,
        float                 scale) {
    const bool fits = sum->type == GGML_TYPE_F32 && ggml_is_contiguous(sum) && ggml_is_matrix(sum) &&
        y->type == GGML_TYPE_F32 && ggml_is_contiguous(y) && ggml_is_matrix(b) &&
        sum->ne[1] >= MIN_TOKENS && b->ne[0] <= H2O_LOW_RANK_MAX;

    if (!fits || !b->buffer || !ggml_backend_buffer_is_host(b->buffer)) {
        return NULL;
    }
    void * data = NULL;
    memcpy(&data, &scale, sizeof(scale));
    return ggml_map_custom3_inplace(ctx, sum, b, y, ggml_h2o_compute_low_rank, GGML_N_TASKS_MAX, data);
}
