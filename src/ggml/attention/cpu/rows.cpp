#include "ggml/attention/cpu/rows.h"

#include "ggml-cpu.h"

#include <algorithm>
#include <cstring>

static const char * row_of(const h2o_attn_source & x, int64_t key) {
    return x.data + (x.rows ? x.rows[key] : key)*x.stride;
}

h2o_attn_source h2o_attn_source_of(const ggml_tensor * t, const void * data, int64_t head, const int32_t * rows,
        int64_t start) {
    const char * first = (const char *) data + head*t->nb[2] + (rows ? 0 : start*t->nb[1]);

    return { first, (int64_t) t->nb[1], (int64_t) ggml_row_size(t->type, t->ne[0]), rows ? rows + start : nullptr,
        t->type, t->ne[0] };
}

static bool can_kernels_read(const h2o_attn_source & x) {
    return x.d % H2O_ATTN_LANES == 0 && (x.type == GGML_TYPE_F32 || x.type == GGML_TYPE_F16 ||
            x.type == GGML_TYPE_Q8_0);
}

// n keys or values of any type from the key-th on, as float32, d_to numbers of each.
static void read_rows(const h2o_attn_kernel & kernel, const h2o_attn_source & x, int64_t key, int64_t n, int64_t d_to,
        float * dst) {
    if (can_kernels_read(x)) {
        return kernel.read(x, key, n, dst); // d numbers are d_to
    }
    for (int64_t i = 0; i < n; ++i, dst += d_to) {
        if (x.type == GGML_TYPE_F32) {
            memcpy(dst, row_of(x, key + i), x.size);
        } else {
            ggml_get_type_traits(x.type)->to_float(row_of(x, key + i), dst, x.d);
        }
        std::fill(dst + x.d, dst + d_to, 0.0f);
    }
}

void h2o_attn_prefetch_key(const h2o_attn_key_set & keys, int64_t key) {
    for (const h2o_attn_source & x : { keys.k, keys.v }) {
        for (int64_t i = 0; i < x.size; i += 64) {
            __builtin_prefetch(row_of(x, key) + i);
        }
    }
}

h2o_attn_source h2o_attn_rows(const h2o_attn_kernel & kernel, const h2o_attn_source & x, int64_t n, float * converted) {
    if (can_kernels_read(x) && x.type != GGML_TYPE_Q8_0) {
        return x;
    }
    const int64_t d = h2o_ceil_div(x.d, H2O_ATTN_LANES)*H2O_ATTN_LANES;
    read_rows(kernel, x, 0, n, d, converted);
    const int64_t size = d*sizeof(float);
    return { (const char *) converted, size, size, nullptr, GGML_TYPE_F32, d };
}

void h2o_attn_pack_keys(const h2o_attn_kernel & kernel, h2o_attn_form form, const h2o_attn_key_set & keys, int64_t key,
        float * scratch) {
    const int64_t n = std::min<int64_t>(H2O_ATTN_PAD, keys.n - key);

    if (form == h2o_attn_form::BYTES) {
        return kernel.pack_bytes(keys.k, keys.v, key, keys.n, keys.packed_k, keys.packed_v);
    }
    const auto pack = [&](const h2o_attn_source & x, decltype(kernel.pack_k) pack_rows, float * packed) {
        const int64_t d = x.d;
        read_rows(kernel, x, key, n, d, scratch);
        std::fill(scratch + n*d, scratch + H2O_ATTN_PAD*d, 0.0f);
        pack_rows(scratch, d, key, h2o_attn_pad(keys.n), packed);
    };
    pack(keys.k, kernel.pack_k, keys.packed_k);
    pack(keys.v, kernel.pack_v, keys.packed_v);
}
