#include "h2o-intra.h"

#include "llama-model.h"

#include <map>
#include <stdexcept>

h2o_intra::h2o_intra(const llama_model & model, const std::vector<uint32_t> & layer_ids, uint32_t n_batch, bool offload) {
    const auto & hparams = model.hparams;

    std::map<ggml_backend_buffer_type_t, ggml_context_ptr> ctx_map;

    for (const uint32_t il : layer_ids) {
        auto * buft = offload ? ggml_backend_dev_buffer_type(model.dev_layer(il)) : ggml_backend_cpu_buffer_type();

        auto & ctx = ctx_map[buft];
        if (!ctx) {
            ggml_init_params params = {
                /*.mem_size   =*/ 3*layer_ids.size()*ggml_tensor_overhead(),
                /*.mem_buffer =*/ nullptr,
                /*.no_alloc   =*/ true,
            };
            ctx.reset(ggml_init(params));
        }

        const int64_t n_head = hparams.n_head(il);

        tensors t = {
            /*.m =*/ ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_batch, n_head),
            /*.l =*/ ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_batch, n_head),
            /*.o =*/ ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, hparams.n_embd_head_v(il)*n_head, n_batch),
        };
        ggml_format_name(t.m, "h2o_intra_m_l%d", il);
        ggml_format_name(t.l, "h2o_intra_l_l%d", il);
        ggml_format_name(t.o, "h2o_intra_o_l%d", il);

        layers.emplace(il, t);
    }

    for (auto & [buft, ctx] : ctx_map) {
        ggml_backend_buffer_t buf = ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft);
        if (!buf) {
            throw std::runtime_error("[h2o] failed to allocate the intra attention state (m, l, o)");
        }
        ctxs_bufs.emplace_back(std::move(ctx), buf);
    }
}

size_t h2o_intra::n_bytes() const {
    size_t res = 0;
    for (const auto & [ctx, buf] : ctxs_bufs) {
        res += ggml_backend_buffer_get_size(buf.get());
    }
    return res;
}
