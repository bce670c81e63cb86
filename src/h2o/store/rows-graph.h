#pragma once

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

#include <cstdint>
#include <utility>
#include <vector>

// What one backend does to rows of some layers between two calls, as one graph.
class h2o_rows_graph {
public:
    h2o_rows_graph(ggml_backend_t backend, size_t n_tensors_max);

    // rows of a tensor of the cache are where the backend can use them
    bool can_use(const ggml_tensor * t) const { return ggml_backend_supports_buft(backend,
            ggml_backend_buffer_get_type(t->buffer)); }

    // the backend has these operators, but for views
    bool can_compute(const std::vector<ggml_tensor *> & nodes) const;

    void add(ggml_tensor * node) { ggml_build_forward_expand(gf, node); }

    template <typename T>
    ggml_tensor * new_input(ggml_type type, const std::vector<T> & values, int64_t ne1 = 1) {
        const auto * bytes = (const uint8_t *) values.data();
        inputs.push_back({ ggml_new_tensor_2d(ctx.get(), type, values.size()/ne1, ne1),
                { bytes, bytes + values.size()*sizeof(T) } });
        ggml_set_input(inputs.back().first);
        return inputs.back().first;
    }

    // Begins to compute the nodes that were added. Throws std::runtime_error, which names `what`.
    void compute(ggml_gallocr_ptr & allocator, const char * what);

    ggml_context * get() const { return ctx.get(); }

private:
    const ggml_backend_t backend;

    ggml_context_ptr ctx;
    ggml_cgraph *    gf;

    std::vector<std::pair<ggml_tensor *, std::vector<uint8_t>>> inputs; // and their values
};
