#include "h2o-gather.h"

#include "ggml.h"

ggml_tensor * h2o_gather_k(ggml_context * ctx, ggml_tensor * k, ggml_tensor * rows) {
    return ggml_get_rows(ctx, k, rows);
}

ggml_tensor * h2o_gather_v(ggml_context * ctx, ggml_tensor * v, ggml_tensor * rows, bool v_trans) {
    if (!v_trans) {
        return ggml_cont(ctx, ggml_transpose(ctx, ggml_get_rows(ctx, v, rows)));
    }

    // rows of one element, the same ones for every element of a head
    v    = ggml_view_4d(ctx, v, 1, v->ne[0], v->ne[1], v->ne[2], v->nb[0], v->nb[1], v->nb[2], 0);
    rows = ggml_view_3d(ctx, rows, rows->ne[0], 1, rows->ne[1], rows->nb[1], rows->nb[1], 0);
    rows = ggml_repeat_4d(ctx, rows, rows->ne[0], v->ne[2], rows->ne[2], 1);

    ggml_tensor * res = ggml_get_rows(ctx, v, rows);

    return ggml_reshape_3d(ctx, res, res->ne[1], res->ne[2], res->ne[3]);
}
