#include "h2o/graph/intra.h"

#include "llama-model.h"

#include <string>

h2o_intra::h2o_intra(const llama_model & model, const std::vector<uint32_t> & layer_ids, uint32_t n_batch, bool offload)
    : buffers(3*layer_ids.size()) {
    const auto & hparams = model.hparams;

    for (const uint32_t il : layer_ids) {
        auto * device = h2o_layer_device(model, il, offload);

        const int64_t     n_head = hparams.n_head(il);
        const std::string suffix = "_l" + std::to_string(il);

        layers[il] = {
            /*.m =*/ buffers.add(device, "h2o_intra_m" + suffix, GGML_TYPE_F32, n_batch, n_head),
            /*.l =*/ buffers.add(device, "h2o_intra_l" + suffix, GGML_TYPE_F32, n_batch, n_head),
            /*.o =*/ buffers.add(device, "h2o_intra_o" + suffix, GGML_TYPE_F32, hparams.n_embd_head_v(il)*n_head, n_batch),
        };
    }
    buffers.allocate();
}

size_t h2o_intra::n_bytes() const {
    size_t res = 0;
    for (const auto & [il, t] : layers) {
        res += ggml_nbytes(t.m) + ggml_nbytes(t.l) + ggml_nbytes(t.o);
    }
    return res;
}
