#include "ggml/attention/cpu/lookup.h"

#include "ggml/attention/attention.h"

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
        near_k = dst->src[1];
        near_v = dst->src[2];
    }
    if (const ggml_tensor * t = dst->src[9]) {
        const int64_t n_far = ggml_get_op_params_i32(dst, 4);
        const auto    at    = ggml_h2o_far_offsets(near_k, near_v, n_far);

        far_k       = *near_k;
        far_v       = *near_v;
        far_k.data  = (char *) t->data + at.k;
        far_v.data  = (char *) t->data + at.v;
        far_k.ne[1] = n_far;
        far_v.ne[1] = n_far;

        own   = (const uint32_t *) ((const char *) t->data + at.own);
        n_own = h2o_attn_ceil_div(n_far, 32);
    }
}
