#include "bindings/ops/graph.h"

#include <iterator>

static const int N_TENSORS = 64; // a graph has about 30

double * ops_graph::seconds = nullptr;

static std::string backend_names() {
    std::string names;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        names += std::string(i ? ", " : "") + "'" + ggml_backend_dev_name(ggml_backend_dev_get(i)) + "'";
    }
    return names;
}

ops_graph::ops_graph(const std::string & op, const std::string & backend, int n_threads) : op(op) {
    computing::check();

    this->backend.reset(ggml_backend_init_by_name(backend.c_str(), nullptr));
    if (!this->backend) {
        throw std::invalid_argument("[" + op + "] there is no backend '" + backend + "', there are " + backend_names());
    }

    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(this->backend.get()));
    auto * set_n_threads = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (set_n_threads) {
        set_n_threads(this->backend.get(), n_threads);
    }

    ctx_ptr.reset(ggml_init({
        /*.mem_size   =*/ N_TENSORS*ggml_tensor_overhead() + ggml_graph_overhead_custom(N_TENSORS, false),
        /*.mem_buffer =*/ nullptr,
        /*.no_alloc   =*/ true,
    }));
}

ggml_tensor * ops_graph::input(const py::array & a, ggml_type type) {
    int64_t ne[GGML_MAX_DIMS] = { 1, 1, 1, 1 };
    for (int i = 0; i < a.ndim(); ++i) {
        ne[i] = a.shape(a.ndim() - 1 - i);
    }
    if (py::isinstance<py::array_t<uint8_t>>(a)) {
        ne[0] = ne[0]/ggml_type_size(type)*ggml_blck_size(type);
    }
    ggml_tensor * t = ggml_new_tensor(ctx(), type, GGML_MAX_DIMS, ne);

    inputs.push_back({ t, py::array::ensure(a, py::array::c_style) });

    return t;
}

ggml_tensor * ops_graph::input_of_heads(const py::array & a, ggml_type type) {
    return ggml_permute(ctx(), input(a.attr("swapaxes")(0, 1), type), 0, 2, 1, 3);
}

void ops_graph::compute(const std::vector<ggml_tensor *> & outputs) {
    gf = ggml_new_graph_custom(ctx(), N_TENSORS, false);
    for (ggml_tensor * t : outputs) {
        ggml_build_forward_expand(gf, t);
    }

    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        const ggml_tensor * node = ggml_graph_node(gf, i);
        if (!ggml_backend_supports_op(backend.get(), node)) {
            throw h2o_error("[" + op + "] backend " + ggml_backend_name(backend.get()) + " does not support " + ggml_op_desc(node));
        }
    }

    buffer.reset(ggml_backend_alloc_ctx_tensors(ctx(), backend.get()));
    if (!buffer) {
        throw h2o_error(h2o_reason::MEMORY, "[" + op + "] not enough memory");
    }

    for (const auto & input : inputs) {
        ggml_backend_tensor_set(input.tensor, input.array.data(), 0, ggml_nbytes(input.tensor));
    }

    compute_again();
    if (seconds) {
        const int64_t start = ggml_time_us();
        compute_again();
        *seconds = 1e-6*(ggml_time_us() - start);
    }
}

void ops_graph::compute_again() {
    ggml_status status;
    {
        computing no_gil;
        status = ggml_backend_graph_compute(backend.get(), gf);
    }
    if (status != GGML_STATUS_SUCCESS) {
        throw h2o_error("[" + op + "] " + ggml_status_to_string(status));
    }
}

py::array ops_graph::output(const ggml_tensor * t, const std::vector<py::ssize_t> & shape) const {
    const char * dtype = t->type == GGML_TYPE_F16 ? "float16" : t->type == GGML_TYPE_I32 ? "int32" : "float32";

    py::array a(py::dtype(dtype), shape);
    ggml_backend_tensor_get(t, a.mutable_data(), 0, a.nbytes());

    return a;
}

py::array ops_graph::output(const ggml_tensor * t, py::ssize_t n_axes) const {
    return output(t, std::vector<py::ssize_t>(std::make_reverse_iterator(t->ne + n_axes), std::make_reverse_iterator(t->ne)));
}
