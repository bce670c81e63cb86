#include "h2o/graph/rope.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <cmath>
#include <cstring>
#include <new>

// a quantized cache rotates k once more, by a product with an input
static bool is_cache_rotation(const ggml_tensor * t) {
    return t->op == GGML_OP_MUL_MAT && t->src[0]->flags & GGML_TENSOR_FLAG_INPUT;
}

// the RoPE that comes last on the way to k
static const ggml_tensor * find_last_rope(const ggml_tensor * k) {
    const ggml_tensor * t = k;
    while (t && t->op != GGML_OP_ROPE) {
        if (is_cache_rotation(t)) {
            t = t->src[1];
        } else if (t->op == GGML_OP_RESHAPE || t->op == GGML_OP_CONT) {
            t = t->src[0];
        } else {
            return nullptr;
        }
    }
    return t;
}

// any RoPE between the projection of the hidden states, a product with a weight, and t
static bool has_rope(const ggml_tensor * t) {
    if (!t || (t->op == GGML_OP_MUL_MAT && !is_cache_rotation(t))) {
        return false;
    }
    return t->op == GGML_OP_ROPE || has_rope(t->src[0]) || has_rope(t->src[1]);
}

h2o_rope_kind h2o_find_rope(const ggml_tensor * k) {
    return find_last_rope(k) ? H2O_ROPE_LAST : has_rope(k) ? H2O_ROPE_HIDDEN : H2O_ROPE_NONE;
}

h2o_rope::h2o_rope(const ggml_tensor * k, uint32_t n_max) {
    if (const ggml_tensor * rope = find_last_rope(k)) {
        make_angles(rope, n_max);
    }
}

bool h2o_rope::is_of(const ggml_tensor * k) const {
    const ggml_tensor * rope = find_last_rope(k);

    return rope ? n_dims > 0 && factors == rope->src[2] && memcmp(op_params, rope->op_params, sizeof(op_params)) == 0 : n_dims == 0;
}

// RoPE of vectors that are 1 in the first place of every pair: cosine and sine of each angle, times some length
void h2o_rope::make_angles(const ggml_tensor * rope, size_t n) {
    memcpy(op_params, rope->op_params, sizeof(op_params));
    factors = rope->src[2];

    const auto f32 = [this](int i) {
        float res;
        memcpy(&res, op_params + i, sizeof(res));
        return res;
    };

    n_dims         = op_params[1];
    is_interleaved = op_params[2] == GGML_ROPE_TYPE_NORMAL;

    const int64_t n_pairs = n_dims/2;

    ggml_init_params params = { 8*ggml_tensor_overhead() + ggml_graph_overhead_custom(8, false), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    // a text's position is the same in the first three sections of a multi-section RoPE, and 0 in the fourth
    const bool is_multi = op_params[2] & GGML_ROPE_TYPE_MROPE;

    ggml_tensor * x         = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, n_dims, 1, n);
    ggml_tensor * positions = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, is_multi ? 4*n : n);
    ggml_tensor * t_factors = factors ? ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, n_pairs) : nullptr;
    ggml_tensor * turned    = is_multi ?
        ggml_rope_multi(ctx.get(), x, positions, t_factors, n_dims, op_params + 11, op_params[2], op_params[4], f32(5), f32(6), f32(7), f32(8), f32(9), f32(10)) :
        ggml_rope_ext  (ctx.get(), x, positions, t_factors, n_dims,                 op_params[2], op_params[4], f32(5), f32(6), f32(7), f32(8), f32(9), f32(10));

    ggml_cgraph * gf = ggml_new_graph_custom(ctx.get(), 8, false);
    ggml_build_forward_expand(gf, turned);

    ggml_backend_ptr        backend { ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr) };
    ggml_backend_buffer_ptr buffer  { ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()) };
    if (!buffer) {
        throw std::bad_alloc();
    }

    const auto first  = [&](int64_t j) { return is_interleaved ? 2*j     : j; };
    const auto second = [&](int64_t j) { return is_interleaved ? 2*j + 1 : j + n_pairs; };

    std::vector<float> data(n*n_dims, 0.0f);
    for (size_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n_pairs; ++j) {
            data[i*n_dims + first(j)] = 1.0f;
        }
    }
    std::vector<int32_t> index(positions->ne[0], 0);
    for (size_t i = 0; i < (is_multi ? 3*n : n); ++i) {
        index[i] = i % n;
    }

    ggml_backend_tensor_set(x,         data.data(),  0, ggml_nbytes(x));
    ggml_backend_tensor_set(positions, index.data(), 0, ggml_nbytes(positions));
    if (factors) {
        std::vector<float> frequency_factors(n_pairs);
        ggml_backend_tensor_get(factors,   frequency_factors.data(), 0, ggml_nbytes(t_factors));
        ggml_backend_tensor_set(t_factors, frequency_factors.data(), 0, ggml_nbytes(t_factors));
    }
    ggml_backend_graph_compute(backend.get(), gf);
    ggml_backend_tensor_get(turned, data.data(), 0, ggml_nbytes(turned));

    cosines.resize(n*n_pairs);
    sines  .resize(n*n_pairs);
    for (size_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n_pairs; ++j) {
            const float c = data[i*n_dims + first(j)];
            const float s = data[i*n_dims + second(j)];

            cosines[i*n_pairs + j] = c/std::hypot(c, s);
            sines  [i*n_pairs + j] = s/std::hypot(c, s);
        }
    }
}

void h2o_rope::set_angles(ggml_h2o_keys & keys, uint32_t i) const {
    keys.n_pairs        = n_dims/2;
    keys.is_interleaved = is_interleaved;
    keys.cosines        = cosines.data() + i*keys.n_pairs;
    keys.sines          = sines  .data() + i*keys.n_pairs;
}
