#include "h2o/graph/intra.h"

#include <string>

h2o_intra::h2o_intra(const std::vector<h2o_kv_layer> & layers, uint32_t n_batch) : buffers(2*layers.size()) {
    for (const auto & layer : layers) {
        const int64_t     n_head = layer.n_head;
        auto *            buft   = ggml_backend_dev_buffer_type(layer.device);
        const std::string suffix = "_l" + std::to_string(layer.il);

        states[layer.il] = {
            /*.lse =*/ buffers.add(buft, "h2o_intra_lse" + suffix, GGML_TYPE_F32, n_head, n_batch),
            /*.o   =*/ buffers.add(buft, "h2o_intra_o" + suffix, GGML_TYPE_F32, layer.v.n_embd*n_head, n_batch),
        };
    }
    buffers.allocate("the attention state");
}

size_t h2o_intra::n_bytes() const {
    size_t res = 0;
    for (const auto & [il, t] : states) {
        res += ggml_nbytes(t.lse) + ggml_nbytes(t.o);
    }
    return res;
}
