#include "ggml.h"

struct ggml_tensor * ggml_max_rows(
        struct ggml_context * ctx,
        struct ggml_tensor  * a) {
    GGML_ASSERT(a->type == GGML_TYPE_F32 && "the kernels' type");
    GGML_ASSERT(ggml_is_contiguous(a) && "rows follow one another");

    struct ggml_tensor * result = ggml_new_tensor_4d(ctx, a->type, 1, a->ne[1], a->ne[2], a->ne[3]);

    result->op     = GGML_OP_MAX_ROWS;
    result->src[0] = a;

    return result;
}
