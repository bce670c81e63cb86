#include "h2o-attn-lookup.h"

#include "ggml-impl.h"

h2o_attn_lookup_args h2o_attn_lookup_args::none(const ggml_tensor * dst) {
    h2o_attn_lookup_args res;
    res.size = dst->src[0]->ne[1];
    return res;
}

h2o_attn_lookup_args::h2o_attn_lookup_args(const ggml_tensor * dst) : h2o_attn_lookup_args(none(dst)) {
    if (const ggml_tensor * t = dst->src[6]) {
        rows   = (const int32_t *) t->data;
        first  = dst->src[7] ? (const int32_t *) dst->src[7]->data : nullptr;
        last   = dst->src[8] ? (const int32_t *) dst->src[8]->data : nullptr;
        n_rows = t->ne[0];
        n      = t->ne[1];
        size   = ggml_get_op_params_i32(dst, 2);
        offset = ggml_get_op_params_i32(dst, 3);
    }
}
