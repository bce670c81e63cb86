#pragma once

#include "bindings/bindings.h"

#include "ggml-cpp.h"

#include <pybind11/numpy.h>

#include <string>
#include <vector>

// A ggml graph over NumPy arrays, computed once on a named backend.
// A tensor's ne is its array's shape in reverse; the arguments of ggml's constructors must have been checked.
class ops_graph {
public:
    // op is for messages
    ops_graph(const std::string & op, const std::string & backend, int n_threads);

    ggml_context * ctx() const { return ctx_ptr.get(); }

    // Strides that ggml can express are kept, other arrays are made contiguous.
    ggml_tensor * input(py::array a, ggml_type type);

    // rows as bytes of a type that NumPy does not have: [..., n_row_bytes]
    ggml_tensor * input_rows(const py::array_t<uint8_t> & a, ggml_type type);

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
        py::array     array; // first element and layout as in the tensor
    };

    const std::string op;

    ggml_backend_ptr        backend;
    ggml_context_ptr        ctx_ptr;
    ggml_backend_buffer_ptr buffer;
    ggml_cgraph *           gf = nullptr;

    void compute_again();

    std::vector<input_data> inputs;
};
