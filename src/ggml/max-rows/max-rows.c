#include "ggml.h"

struct ggml_tensor * ggml_max_rows(
        struct ggml_context * ctx,
        struct ggml_tensor  * a) {
    GGML_ASSERT((a->type == GGML_TYPE_F32 || a->type == GGML_TYPE_F16) && "the kernels' types");
    GGML_ASSERT(ggml_is_contiguous_rows(a) && "rows are whole");

    int64_t ne[GGML_MAX_DIMS] = { 1 };
    for (int i = 1; i < GGML_MAX_DIMS; ++i) {
        ne[i] = a->ne[i];
    }

    struct ggml_tensor * result = ggml_new_tensor(ctx, a->type, GGML_MAX_DIMS, ne);

    result->op     = GGML_OP_MAX_ROWS;
    result->src[0] = a;

    return result;
}
