#include "ggml/top-keys/top-keys.h"

#include "ggml-impl.h"

struct ggml_tensor * ggml_h2o_top_keys(
        struct ggml_context * ctx,
        struct ggml_tensor  * q,
        struct ggml_tensor  * k,
        struct ggml_tensor  * excluded,
        int                   n_top,
        int                   tile,
        int                   offset) {
    const int64_t n_q       = q->ne[1];
    const int64_t n_head    = q->ne[2];
    const int64_t n_k       = k->ne[1];
    const int64_t n_head_kv = k->ne[2];

    GGML_ASSERT(q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && q->ne[3] == 1 && "rows of q are whole");
    GGML_ASSERT((k->type == GGML_TYPE_Q4_0 || k->type == GGML_TYPE_Q8_0) && k->nb[0] == ggml_type_size(k->type) &&
            k->ne[3] == 1 && "rows of k are whole");
    GGML_ASSERT(k->ne[0] == q->ne[0] && k->ne[0] % ggml_blck_size(k->type) == 0 && "a product of q and k");
    GGML_ASSERT(n_head % n_head_kv == 0 && "query heads share KV heads");
    GGML_ASSERT(offset >= 0 && offset < tile && "the first tile has queries");
    GGML_ASSERT(n_k > 0 && n_k <= INT32_MAX && n_top > 0 && "rows are numbers of 32 bits");
    GGML_ASSERT((!excluded || (excluded->type == GGML_TYPE_I32 && excluded->nb[0] == sizeof(int32_t))) &&
            "a head's rows are contiguous");
    GGML_ASSERT((!excluded || (excluded->ne[1] == n_head_kv && ggml_is_matrix(excluded))) && "every head has its own");

    struct ggml_tensor * result = ggml_new_tensor_3d(ctx, GGML_TYPE_I32, n_top, (n_q + offset + tile - 1)/tile,
            n_head_kv);

    ggml_set_op_params_i32(result, 0, tile);
    ggml_set_op_params_i32(result, 1, offset);

    result->op     = GGML_OP_H2O_TOP_KEYS;
    result->src[0] = q;
    result->src[1] = k;
    result->src[2] = excluded;

    return result;
}
