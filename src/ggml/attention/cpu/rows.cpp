#include "ggml/attention/cpu/rows.h"

#include "ggml.h"
#include "ggml-cpu.h"

#include <cstring>

void h2o_attn_read_row(const ggml_tensor * t, int64_t row, int64_t head, float * dst) {
    const char *  src = (const char *) t->data + row*t->nb[1] + head*t->nb[2];
    const int64_t n   = t->ne[0];

    switch (t->type) {
        case GGML_TYPE_F32:
            memcpy(dst, src, n*sizeof(float));
            break;
        case GGML_TYPE_F16:
            ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) src, dst, n);
            break;
        case GGML_TYPE_BF16:
            ggml_cpu_bf16_to_fp32((const ggml_bf16_t *) src, dst, n);
            break;
        default:
            ggml_get_type_traits(t->type)->to_float(src, dst, n);
    }
}

void h2o_attn_prefetch_row(const ggml_tensor * t, int64_t row, int64_t head) {
    const char *  src = (const char *) t->data + row*t->nb[1] + head*t->nb[2];
    const int64_t n   = ggml_row_size(t->type, t->ne[0]);

    for (int64_t i = 0; i < n; i += 64) {
        __builtin_prefetch(src + i);
    }
}

bool h2o_attn_find_source(const ggml_tensor * t, int64_t h, const int32_t * rows, h2o_attn_source & res) {
    res.data   = (const char *) t->data + h*t->nb[2];
    res.stride = t->nb[1];
    res.size   = ggml_row_size(t->type, t->ne[0]);
    res.rows   = rows;

    switch (t->type) {
        case GGML_TYPE_F32:  res.type = H2O_ATTN_F32;  return true;
        case GGML_TYPE_F16:  res.type = H2O_ATTN_F16;  return true;
        case GGML_TYPE_BF16: res.type = H2O_ATTN_BF16; return true;
        case GGML_TYPE_Q8_0: res.type = H2O_ATTN_Q8_0; return true;
        default:             return false;
    }
}
