#include "h2o/store/rows-graph.h"

#include "h2o/config/refusal.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

h2o_rows_graph::h2o_rows_graph(ggml_backend_t backend, size_t n_tensors_max) : backend(backend),
    ctx(ggml_init({ n_tensors_max*ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors_max, false), nullptr,
            true })) {
    if (!ctx) {
        throw std::bad_alloc();
    }
    gf = ggml_new_graph_custom(ctx.get(), n_tensors_max, false);
}

bool h2o_rows_graph::can_compute(const std::vector<ggml_tensor *> & nodes) const {
    return std::all_of(nodes.begin(), nodes.end(),
            [&](const ggml_tensor * node) { return ggml_backend_supports_op(backend, node); });
}

void h2o_rows_graph::compute(ggml_gallocr_ptr & allocator, const char * what) {
    if (ggml_graph_n_nodes(gf) == 0) {
        return;
    }
    auto * buft = ggml_backend_get_default_buffer_type(backend);
    if (!allocator) {
        allocator.reset(ggml_gallocr_new(buft));
    }
    // Without a reservation the allocator keeps the previous graph's layout when the number of tensors is the same and
    // none is larger. Here other tensors may use an input, so its place may be taken.
    if (!ggml_gallocr_reserve(allocator.get(), gf) || !ggml_gallocr_alloc_graph(allocator.get(), gf)) {
        allocator.reset(); // it would not try again
        throw h2o_refusal(h2o_reason::MEMORY, std::string("[h2o] not enough memory: ") + what + ": " +
                ggml_backend_buft_name(buft));
    }
    for (const auto & [input, bytes] : inputs) {
        if (input->buffer) { // else nothing that was added uses it
            ggml_backend_tensor_set(input, bytes.data(), 0, bytes.size());
        }
    }
    if (ggml_backend_graph_compute_async(backend, gf) != GGML_STATUS_SUCCESS) {
        throw std::runtime_error(std::string("[h2o] ") + what + ": " + ggml_backend_name(backend) + " failed");
    }
}
