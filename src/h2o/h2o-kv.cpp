#include "h2o-kv.h"

#include "h2o-gather.h"

#include "llama-hparams.h"
#include "llama-model.h"

#include "ggml-cpp.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
#include <vector>

// llama.cpp rotates quantized K and V by a Hadamard matrix, which is its own inverse, in blocks of n_rot values.
static uint32_t h2o_kv_n_rot(const llama_kv_cache_h2o & kv, bool is_k) {
    ggml_init_params params = { ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    const ggml_tensor * rot = is_k ? kv.build_input_k_rot(ctx.get()) : kv.build_input_v_rot(ctx.get());

    return rot ? rot->ne[0] : 0;
}

// normalised Walsh-Hadamard transform of every block of n_rot values
static void h2o_kv_rotate(float * data, size_t n, uint32_t n_rot) {
    if (n_rot == 0) {
        return;
    }

    const float scale = 1.0f/std::sqrt((float) n_rot);

    for (float * block = data; block < data + n; block += n_rot) {
        for (uint32_t step = 1; step < n_rot; step *= 2) {
            for (uint32_t i = 0; i < n_rot; i += 2*step) {
                for (uint32_t j = i; j < i + step; ++j) {
                    const float a = block[j];
                    const float b = block[j + step];
                    block[j]        = a + b;
                    block[j + step] = a - b;
                }
            }
        }
        for (uint32_t i = 0; i < n_rot; ++i) {
            block[i] *= scale;
        }
    }
}

static void h2o_kv_decode_row(ggml_type type, const void * src, float * dst, int64_t n) {
    if (type == GGML_TYPE_F32) {
        std::copy_n((const float *) src, n, dst);
    } else if (type == GGML_TYPE_F16) {
        ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) src, dst, n); // faster than the type's to_float
    } else {
        ggml_get_type_traits(type)->to_float(src, dst, n);
    }
}

static void h2o_kv_encode_row(ggml_type type, const float * src, void * dst, int64_t n) {
    if (type == GGML_TYPE_F32) {
        std::copy_n(src, n, (float *) dst);
    } else {
        ggml_get_type_traits(type)->from_float_ref(src, dst, n);
    }
}

// One layer's K or V as the cache stores it.
struct h2o_kv_tensor {
    ggml_tensor * t;
    bool     transposed;
    uint32_t n_rot;
    uint32_t n_head;
    uint32_t n_embd; // per head
    uint32_t kv_size;

    h2o_kv_tensor(const llama_kv_cache_h2o & kv, int32_t il, bool is_k) {
        const auto & hparams = kv.get_model().hparams;

        ggml_init_params params = { 4*ggml_tensor_overhead(), nullptr, true };
        ggml_context_ptr ctx { ggml_init(params) };

        t          = (is_k ? kv.keys(ctx.get(), il) : kv.values(ctx.get(), il))->view_src;
        transposed = !is_k && kv.v_is_transposed();
        n_rot      = h2o_kv_n_rot(kv, is_k);
        n_head     = hparams.n_head_kv(il);
        n_embd     = is_k ? hparams.n_embd_head_k(il) : hparams.n_embd_head_v(il);
        kv_size    = kv.get_size();
    }

    void get(uint32_t p0, uint32_t p1, float * dst) const {
        const size_t n_pos = p1 - p0;

        std::vector<float> row(std::max<size_t>((size_t) n_head*n_embd, n_pos));

        if (transposed) {
            std::vector<uint8_t> raw(ggml_row_size(t->type, n_pos));
            for (size_t i = 0; i < (size_t) n_head*n_embd; ++i) {
                ggml_backend_tensor_get(t, raw.data(), ggml_row_size(t->type, i*kv_size + p0), raw.size());
                h2o_kv_decode_row(t->type, raw.data(), row.data(), n_pos);
                for (size_t p = 0; p < n_pos; ++p) {
                    dst[(i/n_embd*n_pos + p)*n_embd + i%n_embd] = row[p];
                }
            }
        } else {
            std::vector<uint8_t> raw(t->nb[1]);
            for (size_t p = 0; p < n_pos; ++p) {
                ggml_backend_tensor_get(t, raw.data(), (p0 + p)*t->nb[1], raw.size());
                h2o_kv_decode_row(t->type, raw.data(), row.data(), (int64_t) n_head*n_embd);
                for (size_t h = 0; h < n_head; ++h) {
                    std::copy_n(row.data() + h*n_embd, n_embd, dst + (h*n_pos + p)*n_embd);
                }
            }
        }

        h2o_kv_rotate(dst, n_head*n_pos*n_embd, n_rot);
    }

    void set(uint32_t p0, uint32_t p1, const float * src) const {
        const size_t n_pos = p1 - p0;

        std::vector<float> data(src, src + n_head*n_pos*n_embd);
        h2o_kv_rotate(data.data(), data.size(), n_rot);

        std::vector<float> row(std::max<size_t>((size_t) n_head*n_embd, n_pos));

        if (transposed) {
            std::vector<uint8_t> raw(ggml_row_size(t->type, n_pos));
            for (size_t i = 0; i < (size_t) n_head*n_embd; ++i) {
                for (size_t p = 0; p < n_pos; ++p) {
                    row[p] = data[(i/n_embd*n_pos + p)*n_embd + i%n_embd];
                }
                h2o_kv_encode_row(t->type, row.data(), raw.data(), n_pos);
                ggml_backend_tensor_set(t, raw.data(), ggml_row_size(t->type, i*kv_size + p0), raw.size());
            }
        } else {
            std::vector<uint8_t> raw(t->nb[1]);
            for (size_t p = 0; p < n_pos; ++p) {
                for (size_t h = 0; h < n_head; ++h) {
                    std::copy_n(data.data() + (h*n_pos + p)*n_embd, n_embd, row.data() + h*n_embd);
                }
                h2o_kv_encode_row(t->type, row.data(), raw.data(), (int64_t) n_head*n_embd);
                ggml_backend_tensor_set(t, raw.data(), (p0 + p)*t->nb[1], raw.size());
            }
        }
    }
};

void h2o_kv_get_k(const llama_kv_cache_h2o & kv, int32_t il, uint32_t p0, uint32_t p1, float * dst) {
    h2o_kv_tensor(kv, il, true).get(p0, p1, dst);
}

void h2o_kv_get_v(const llama_kv_cache_h2o & kv, int32_t il, uint32_t p0, uint32_t p1, float * dst) {
    h2o_kv_tensor(kv, il, false).get(p0, p1, dst);
}

void h2o_kv_get_k_rows(const llama_kv_cache_h2o & kv, int32_t il, uint32_t p0, uint32_t p1, std::vector<float> & dst,
        const std::function<void(uint32_t i, float * row)> & finish) {
    const h2o_kv_tensor storage(kv, il, true);

    const ggml_tensor * t     = storage.t;
    const size_t        n_pos = p1 - p0;
    const size_t        n_row = (size_t) storage.n_head*storage.n_embd;

    std::vector<uint8_t> copy;
    const uint8_t * data = (const uint8_t *) t->data + p0*t->nb[1];
    if (!ggml_backend_buffer_is_host(t->buffer)) {
        copy.resize(n_pos*t->nb[1]);
        ggml_backend_tensor_get(t, copy.data(), p0*t->nb[1], copy.size());
        data = copy.data();
    }

    dst.resize(n_pos*n_row);
    for (size_t i = 0; i < n_pos; ++i) {
        float * row = dst.data() + i*n_row;
        h2o_kv_decode_row(t->type, data + i*t->nb[1], row, n_row);
        h2o_kv_rotate(row, n_row, storage.n_rot);
        finish(i, row);
    }
}

void h2o_kv_set_k(llama_kv_cache_h2o & kv, int32_t il, uint32_t p0, uint32_t p1, const float * src) {
    h2o_kv_tensor(kv, il, true).set(p0, p1, src);
}

void h2o_kv_set_v(llama_kv_cache_h2o & kv, int32_t il, uint32_t p0, uint32_t p1, const float * src) {
    h2o_kv_tensor(kv, il, false).set(p0, p1, src);
}

static bool h2o_kv_gather(const llama_kv_cache_h2o & kv, int32_t il, bool is_k, float * dst) {
    const auto * layer  = kv.state.layer(il);
    const auto   memory = kv.state.memory(*layer);

    const size_t M        = kv.state.config.memory_size();
    const size_t n_memory = std::find(memory.begin(), memory.begin() + M, -1) - memory.begin();

    const h2o_kv_tensor storage(kv, il, is_k);
    const size_t n_embd = storage.n_embd;

    std::fill(dst, dst + layer->n_head_kv*M*n_embd, 0.0f);
    if (n_memory == 0) {
        return true;
    }

    ggml_init_params params = { 16*ggml_tensor_overhead() + ggml_graph_overhead_custom(16, false), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    ggml_tensor * rows = kv.key_rows(ctx.get(), il, n_memory, 0);
    ggml_tensor * t    = is_k ?
        h2o_gather_k(ctx.get(), kv.keys  (ctx.get(), il), rows) :
        h2o_gather_v(ctx.get(), kv.values(ctx.get(), il), rows, kv.v_is_transposed());

    ggml_cgraph * gf = ggml_new_graph_custom(ctx.get(), 16, false);
    ggml_build_forward_expand(gf, t);

    ggml_backend_ptr        backend { ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr) };
    ggml_backend_buffer_ptr buffer  { backend ? ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()) : nullptr };
    if (!buffer || ggml_backend_graph_compute(backend.get(), gf) != GGML_STATUS_SUCCESS) {
        return false;
    }

    std::vector<float> data(ggml_nelements(t));
    ggml_backend_tensor_get(t, data.data(), 0, ggml_nbytes(t));

    for (size_t h = 0; h < layer->n_head_kv; ++h) {
        for (size_t i = 0; i < n_memory; ++i) {
            for (size_t j = 0; j < n_embd; ++j) {
                dst[(h*M + i)*n_embd + j] = is_k ? data[(h*n_memory + i)*n_embd + j] : data[(h*n_embd + j)*n_memory + i];
            }
        }
    }

    h2o_kv_rotate(dst, layer->n_head_kv*M*n_embd, storage.n_rot);

    return true;
}

bool h2o_kv_gather_k(const llama_kv_cache_h2o & kv, int32_t il, float * dst) {
    return h2o_kv_gather(kv, il, true, dst);
}

bool h2o_kv_gather_v(const llama_kv_cache_h2o & kv, int32_t il, float * dst) {
    return h2o_kv_gather(kv, il, false, dst);
}
