#include "ggml/attention/cpu/rows.h"

#include "ggml-cpu.h"

#include <algorithm>
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

static void prefetch_row(const ggml_tensor * t, int64_t row, int64_t head) {
    const char *  src = (const char *) t->data + row*t->nb[1] + head*t->nb[2];
    const int64_t n   = ggml_row_size(t->type, t->ne[0]);

    for (int64_t i = 0; i < n; i += 64) {
        __builtin_prefetch(src + i);
    }
}

void h2o_attn_prefetch_key(const h2o_attn_key_set & keys, int64_t key) {
    prefetch_row(keys.k, keys.rows[key], keys.head);
    prefetch_row(keys.v, keys.rows[key], keys.head);
}

bool h2o_attn_find_source(const ggml_tensor * t, int64_t h, h2o_attn_rows rows, const int32_t * iota,
        h2o_attn_source & res) {
    res.data   = (const char *) t->data + h*t->nb[2] + (rows.list ? 0 : rows.start*t->nb[1]);
    res.stride = t->nb[1];
    res.size   = ggml_row_size(t->type, t->ne[0]);
    res.rows   = rows.list ? rows.list : iota;

    switch (t->type) {
        case GGML_TYPE_F32:  res.type = H2O_ATTN_F32;  return true;
        case GGML_TYPE_F16:  res.type = H2O_ATTN_F16;  return true;
        case GGML_TYPE_BF16: res.type = H2O_ATTN_BF16; return true;
        case GGML_TYPE_Q8_0: res.type = H2O_ATTN_Q8_0; return true;
        default:             return false;
    }
}

h2o_attn_source h2o_attn_get_source(const ggml_tensor * t, int64_t h, h2o_attn_rows rows, int64_t n,
        const int32_t * iota,
        float * converted) {
    h2o_attn_source res;
    if (!h2o_attn_find_source(t, h, rows, iota, res) || t->ne[0] % H2O_ATTN_LANES != 0) {
        const int64_t d = h2o_ceil_div(t->ne[0], H2O_ATTN_LANES)*H2O_ATTN_LANES;
        for (int64_t i = 0; i < n; ++i) {
            h2o_attn_read_row(t, rows[i], h, converted + i*d);
            std::fill(converted + i*d + t->ne[0], converted + (i + 1)*d, 0.0f);
        }
        res = { converted, (int64_t) (d*sizeof(float)), 0, iota, H2O_ATTN_F32 };
    }
    return res;
}

// without their sign, floats are ordered like integers, and NaN comes last
float h2o_attn_peak(const float * x, int64_t n) {
    int32_t max = 0;
    for (int64_t i = 0; i < n; ++i) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        max = std::max(max, bits & INT32_MAX);
    }
    float res;
    memcpy(&res, &max, sizeof(res));
    return res;
}

bool h2o_attn_is_tame(float max_q, const h2o_attn_peaks & max, int64_t d_k) {
    return max_q < 1e30f && max.k < 1e30f && max.v < 1e30f && max_q*max.k*d_k < 1e37f;
}

h2o_attn_peaks h2o_attn_pack_keys(const h2o_attn_kernel & kernel, const h2o_attn_key_set & keys, int64_t key,
        float * scratch) {
    const int64_t n = std::min<int64_t>(H2O_ATTN_KEYS, keys.n - key);

    const auto pack = [&](const ggml_tensor * t, decltype(kernel.pack_k) pack_rows, float * packed) {
        const int64_t d = t->ne[0];
        for (int64_t i = 0; i < n; ++i) {
            h2o_attn_read_row(t, keys.rows[key + i], keys.head, scratch + i*d);
        }
        std::fill(scratch + n*d, scratch + H2O_ATTN_KEYS*d, 0.0f);
        pack_rows(scratch, d, key, h2o_attn_pad(keys.n), packed);

        return h2o_attn_peak(scratch, n*d);
    };

    return { pack(keys.k, kernel.pack_k, keys.packed_k), pack(keys.v, kernel.pack_v, keys.packed_v) };
}
