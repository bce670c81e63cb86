#pragma once

#include "bindings/bindings.h"

#include "ggml-cpp.h"

#include <pybind11/numpy.h>

#include <string>
#include <vector>

// A ggml graph over NumPy arrays, computed once on a named backend.
// A tensor's ne is its array's shape in reverse.
class ops_graph {
public:
    // op is for messages
    ops_graph(const std::string & op, const std::string & backend, int n_threads);

    ggml_context * ctx() const { return ctx_ptr.get(); }

    // An array of this type's numbers, or of uint8: rows as bytes of the type [..., n_row_bytes].
    ggml_tensor * input(const py::array & a, ggml_type type);

    // The same of each head [n_head, n, ..]: the heads of a row stand together, as in a model.
    ggml_tensor * input_of_heads(const py::array & a, ggml_type type);

    // Releases the GIL while it computes.
    void compute(const std::vector<ggml_tensor *> & outputs);

    // for benchmarks: if it is set, every graph is computed twice, and these are the seconds of the second time
    static double * seconds;

    // an output as an array of this shape, or with n_axes axes
    py::array output(const ggml_tensor * t, const std::vector<py::ssize_t> & shape) const;
    py::array output(const ggml_tensor * t, py::ssize_t n_axes) const;

private:
    struct input_data {
        ggml_tensor * tensor;
        py::array     array; // contiguous
    };

    const std::string op;

    ggml_backend_ptr        backend;
    ggml_context_ptr        ctx_ptr;
    ggml_backend_buffer_ptr buffer;
    ggml_cgraph *           gf = nullptr;

    void compute_again();

    std::vector<input_data> inputs;
};
