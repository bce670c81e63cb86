#include "bindings/ops/graph.h"
#include "bindings/types.h"

#include "ggml/attention/attention.h"
#include "ggml/top-keys/top-keys.h"
#include "ggml/product/product.h"
#include "ggml/simd/isa.h"
#include "h2o/graph/softmax.h"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <optional>
#include <tuple>

using shape        = std::vector<py::ssize_t>;
using state_arrays = std::tuple<py::array, py::array, py::array>; // m, l, o

static py::array max_rows(const py::array & a, const std::string & type, const std::string & backend, int n_threads) {
    ops_graph graph("max_rows", backend, n_threads);

    ggml_tensor * t = ggml_max_rows(graph.ctx(), graph.input(a, find_type(type)));
    graph.compute({ t });

    return graph.output(t, a.ndim());
}

// an array of this type's elements, or of rows' bytes
static ggml_tensor * input_of_type(ops_graph & graph, const py::array & a, ggml_type type) {
    return py::isinstance<py::array_t<uint8_t>>(a) ? graph.input_rows(a, type) : graph.input(a, type);
}

static py::array get_rows(const py::array & a, const std::string & type_name, const py::array_t<int32_t> & indices, const std::string & backend, int n_threads) {
    ops_graph graph("get_rows", backend, n_threads);

    const ggml_type type = find_type(type_name);

    ggml_tensor * t = ggml_get_rows(graph.ctx(), input_of_type(graph, a, type), graph.input(indices, GGML_TYPE_I32));
    graph.compute({ t });

    return graph.output(t, a.ndim());
}

// m and l are [..., n_q, 1]
static state_arrays compute_state(ops_graph & graph, const h2o_softmax_state & state, py::ssize_t n_axes) {
    graph.compute({ state.m, state.l, state.o });
    return { graph.output(state.m, n_axes), graph.output(state.l, n_axes), graph.output(state.o, n_axes) };
}

static state_arrays softmax_state(const py::array & logits, const py::array & v, float scale, const std::string & backend, int n_threads) {
    ops_graph graph("softmax_state", backend, n_threads);

    ggml_tensor * kq = ggml_cont(graph.ctx(), graph.input(logits, GGML_TYPE_F32));
    ggml_tensor * vt = ggml_transpose(graph.ctx(), graph.input(v, GGML_TYPE_F32));

    ggml_tensor * weights;
    return compute_state(graph, h2o_softmax_state_build(graph.ctx(), kq, scale, vt, &weights), logits.ndim());
}

static state_arrays fuse(const std::vector<py::array> & a, const std::vector<py::array> & b, const std::string & backend, int n_threads) {
    ops_graph graph("fuse", backend, n_threads);

    const auto input = [&](const std::vector<py::array> & state) {
        return h2o_softmax_state {
            graph.input(state[0], GGML_TYPE_F32),
            graph.input(state[1], GGML_TYPE_F32),
            graph.input(state[2], GGML_TYPE_F32),
        };
    };

    return compute_state(graph, h2o_softmax_state_fuse(graph.ctx(), input(a), input(b)), a[0].ndim());
}

static py::array column_sums(const py::array & weights, int64_t n_head_kv, const std::string & backend, int n_threads) {
    ops_graph graph("column_sums", backend, n_threads);

    ggml_tensor * t = h2o_column_sums_build(graph.ctx(), ggml_cont(graph.ctx(), graph.input(weights, GGML_TYPE_F32)), n_head_kv);
    graph.compute({ t });

    return graph.output(t, weights.ndim() - 1);
}

using int_array = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;

// ggml_h2o_attn_params, of arrays: rows [n_head_kv, n_k], first [n_k], limits [n_q], sinks [n_head],
// extra_rows [n_head_kv, n_tiles, n].
struct attention_params {
    std::optional<py::array_t<int32_t>> rows;
    int64_t                             n_k;
    std::optional<int_array>            first;
    std::optional<int_array>            limits;
    std::optional<int_array>            extra_rows;
    int                                 tile;
    int                                 offset;
    std::optional<py::array_t<float>>   sinks;
    float                               scale;
    float                               softcap;
    int                                 sums;
};

// q is [n_head, n_q, d_k], k and v are [n_head_kv, n_kv, d]; sums are [1 or n_q, n_head_kv, n_k]
static std::tuple<py::array, std::optional<py::array>, py::array, py::array> attention(
        const py::array & q, const py::array & k, const py::array & v, const std::string & type_name,
        const attention_params & params, const std::string & backend, int n_threads) {
    ops_graph graph("attention", backend, n_threads);

    const ggml_type type = find_type(type_name);

    const auto input = [&](const auto & a, ggml_type type) { return a ? graph.input(*a, type) : nullptr; };

    ggml_h2o_attn_params p = {};
    p.rows    = input(params.rows, GGML_TYPE_I32);
    p.n_k     = params.n_k;
    p.first   = input(params.first, GGML_TYPE_I32);
    p.limits  = input(params.limits, GGML_TYPE_I32);
    p.sinks   = input(params.sinks, GGML_TYPE_F32);
    p.scale   = params.scale;
    p.softcap = params.softcap;
    p.sums    = (ggml_h2o_attn_sums) params.sums;

    p.extra.rows   = input(params.extra_rows, GGML_TYPE_I32);
    p.extra.tile   = params.tile;
    p.extra.offset = params.offset;

    const ggml_h2o_attn_result res = ggml_h2o_attn(graph.ctx(), graph.input(q, GGML_TYPE_F32),
        input_of_type(graph, k, type), input_of_type(graph, v, type), &p);

    std::vector<ggml_tensor *> outputs = { res.o, res.m, res.l };
    if (res.sums) {
        outputs.push_back(res.sums);
    }
    graph.compute(outputs);

    const shape queries = { q.shape(0), q.shape(1) };

    return {
        graph.output(res.o, { q.shape(1), q.shape(0), (py::ssize_t) res.o->ne[0] }),
        res.sums ? std::optional(graph.output(res.sums, { res.sums->ne[2], res.sums->ne[1], res.sums->ne[0] })) : std::nullopt,
        graph.output(res.m, queries),
        graph.output(res.l, queries),
    };
}

// q is [n_head, n_q, d_k], k is [n_head_kv, n_k, bytes of a row], excluded is [n_head_kv, n_excluded]
static py::array top_keys(
        const py::array & q, const py::array_t<uint8_t> & k, int n_top, const std::optional<py::array_t<int32_t>> & excluded, int tile, int offset,
        const std::string & backend, int n_threads) {
    ops_graph graph("top_keys", backend, n_threads);

    // as in an index: the heads of a row stand together
    ggml_tensor * rows = graph.input_rows(k.attr("swapaxes")(0, 1), GGML_TYPE_Q4_0);

    ggml_tensor * t = ggml_h2o_top_keys(graph.ctx(), graph.input(q, GGML_TYPE_F32), ggml_permute(graph.ctx(), rows, 0, 2, 1, 3),
        excluded ? graph.input(*excluded, GGML_TYPE_I32) : nullptr, n_top, tile, offset);
    graph.compute({ t });

    return graph.output(t, 3);
}

// Weights are bytes of this type [n_rows, n_bytes], x is [n_columns, n]; of experts, with ids [n_tokens, n_used],
// [n_experts, n_rows, n_bytes] and [n_tokens, 1 or n_used, n].
static py::array product(const py::array_t<uint8_t> & weights, const std::string & type, const py::array & x,
        bool by_h2o, int n_threads, const std::optional<py::array_t<int32_t>> & ids) {
    ops_graph graph("product", "cpu", n_threads);

    ggml_tensor * w = graph.input_rows(weights, find_type(type));
    ggml_tensor * y = graph.input(x, GGML_TYPE_F32);
    ggml_tensor * t = ids ? ggml_mul_mat_id(graph.ctx(), w, y, graph.input(*ids, GGML_TYPE_I32)) :
        ggml_mul_mat(graph.ctx(), w, y);
    if (by_h2o) {
        ggml_h2o_product_hint(t);
    }
    graph.compute({ t });

    return graph.output(t, ids ? 3 : x.ndim());
}

static double seconds(const py::typing::Callable<py::object()> & op) {
    double res = 0.0;
    ops_graph::seconds = &res;
    try {
        op();
    } catch (...) {
        ops_graph::seconds = nullptr;
        throw;
    }
    ops_graph::seconds = nullptr;
    return res;
}

static std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (int i = H2O_N_ISAS - 1; i >= 0; --i) {
        if (h2o_has_isa((h2o_isa) i)) {
            names.push_back(h2o_isa_name((h2o_isa) i));
        }
    }
    return names;
}

static void set_isa(const std::string & name) {
    for (int i = 0; i < H2O_N_ISAS; ++i) {
        if (h2o_has_isa((h2o_isa) i) && name == h2o_isa_name((h2o_isa) i)) {
            return h2o_set_isa((h2o_isa) i);
        }
    }
    throw std::invalid_argument("[ops] this CPU has no '" + name + "'");
}

// For tests: arguments are not checked.
void init_ops(py::module_ & m) {
    m.def("ops_max_rows", &max_rows, py::arg("a"), py::arg("type"), py::arg("backend"), py::arg("n_threads"));
    m.def("ops_get_rows", &get_rows, py::arg("a"), py::arg("type"), py::arg("indices"), py::arg("backend"), py::arg("n_threads"));
    m.def("ops_softmax_state", &softmax_state, py::arg("logits"), py::arg("v"), py::arg("scale"), py::arg("backend"), py::arg("n_threads"));
    m.def("ops_fuse", &fuse, py::arg("a"), py::arg("b"), py::arg("backend"), py::arg("n_threads"));
    m.def("ops_column_sums", &column_sums, py::arg("weights"), py::arg("n_head_kv"), py::arg("backend"), py::arg("n_threads"));

    using ints   = std::optional<int_array>;
    using rows_t = std::optional<py::array_t<int32_t>>;
    using reals  = std::optional<py::array_t<float>>;

    py::class_<attention_params>(m, "ops_AttentionParams")
        .def(py::init<rows_t, int64_t, ints, ints, ints, int, int, reals, float, float, int>(), py::kw_only(),
            py::arg("rows") = py::none(), py::arg("n_k") = 0, py::arg("first") = py::none(), py::arg("limits") = py::none(),
            py::arg("extra_rows") = py::none(), py::arg("tile") = 1, py::arg("offset") = 0,
            py::arg("sinks") = py::none(), py::arg("scale") = 1.0f, py::arg("softcap") = 0.0f, py::arg("sums") = 0);
    m.def("ops_attention", &attention, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("type"), py::arg("params"),
        py::arg("backend"), py::arg("n_threads"));

    m.def("ops_top_keys", &top_keys, py::arg("q"), py::arg("k"), py::arg("n_top"), py::arg("excluded").none(true), py::arg("tile"), py::arg("offset"), py::arg("backend"), py::arg("n_threads"));

    // for tests and benchmarks
    m.def("ops_isas", &isas, "Instruction sets of this CPU for which H2O's operators have kernels, the best first.");
    m.def("ops_set_isa", &set_isa, py::arg("name"), "Kernels that need none better than this, from now on.");
    m.def("ops_product", &product, py::arg("weights"), py::arg("type"), py::arg("x"), py::arg("by_h2o"), py::arg("n_threads"),
        py::arg("ids") = py::none(),
        "Products with weights of a type [n_rows, bytes of a row], of x [n_columns, n]. With ids [n_tokens, n_used] of\n"
        "experts, their rows are [n_experts, n_rows, bytes], and x is [n_tokens, 1 or n_used, n].");
    m.def("ops_seconds", &seconds, py::arg("op"), "Seconds of the last graph that op() computes, when it is computed again.");
}
