#include "h2o/llama/memory/key-mean.h"

#include "llama-model.h"

#include "ggml-backend.h"

#include <cmath>
#include <complex>
#include <string>
#include <utility>

static constexpr int N_POSITIONS = 4096;

// the mean of e^(i*p*angle) over positions p
static std::complex<double> mean_rotation(double angle) {
    return (1.0 - std::polar(1.0, N_POSITIONS*angle))/(1.0 - std::polar(1.0, angle))/(double) N_POSITIONS;
}

// [n_head][n_embd]; empty: keys have no bias, or their logits more than a softmax behind them
static std::vector<float> mean_of(const llama_model & model, const h2o_kv_layer & layer) {
    const auto &        hparams = model.hparams;
    const auto &        weights = model.layers[layer.il];
    const ggml_tensor * bias    = weights.wk_b; // with MLA something else
    const size_t        n_embd  = layer.k.n_embd;

    if (!ggml_is_quantized(layer.k.t->type) || layer.v_is_in_k() || hparams.no_alloc || !bias ||
            bias->type != GGML_TYPE_F32 || ggml_nelements(bias) != (int64_t) n_embd*layer.k.n_head ||
            weights.attn_k_norm || weights.attn_sinks || hparams.attn_soft_cap || model.arch == LLM_ARCH_GROK) {
        return {};
    }
    std::vector<float> res(ggml_nelements(bias));
    ggml_backend_tensor_get(bias, res.data(), 0, ggml_nbytes(bias));

    const size_t n_rot     = hparams.rope_type == LLAMA_ROPE_TYPE_NONE ? 0 : hparams.n_rot(layer.il);
    const bool   is_normal = hparams.rope_type == LLAMA_ROPE_TYPE_NORM;
    for (size_t head = 0; head < res.size(); head += n_embd) {
        for (size_t i = 0; i < n_rot/2; ++i) {
            float & x = res[head + (is_normal ? 2*i     : i)];
            float & y = res[head + (is_normal ? 2*i + 1 : i + n_rot/2)];

            const auto mean = std::complex<double>(x, y)*
                    mean_rotation(std::pow(hparams.rope_freq_base_train, -2.0*i/n_rot));
            x = mean.real();
            y = mean.imag();
        }
    }
    return res;
}

void h2o_add_key_means(const llama_model & model, std::vector<h2o_kv_layer> & layers, h2o_buffers & buffers) {
    std::vector<std::pair<ggml_tensor *, std::vector<float>>> means;
    for (auto & layer : layers) {
        auto mean = mean_of(model, layer);
        if (!mean.empty()) {
            layer.k.mean = buffers.add(ggml_backend_dev_buffer_type(layer.device),
                    "h2o_key_mean_l" + std::to_string(layer.il), GGML_TYPE_F32, layer.k.n_embd, layer.k.n_head);
            means.push_back({ layer.k.mean, std::move(mean) });
        }
    }
    buffers.allocate("means of keys");
    for (const auto & [t, mean] : means) {
        ggml_backend_tensor_set(t, mean.data(), 0, ggml_nbytes(t));
    }
}
