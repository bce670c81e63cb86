#include "bindings/ops/graph.h"

#include "ggml/attention/attention.h"
#include "ggml/top-keys/top-keys.h"
#include "ggml/product/product.h"
#include "ggml/simd/isa.h"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

static py::array max_rows(const py::array & a, const std::string & type, const std::string & backend, int n_threads) {
    ops_graph graph("max_rows", backend, n_threads);

    ggml_tensor * t = ggml_max_rows(graph.ctx(), graph.input(a, find_type(type)));
    graph.compute({ t });

    return graph.output(t, a.ndim());
}

// q is [n_head, n_q, d_k], k and v are [n_head_kv, n_kv, d]; sums are [1 or n_q, n_head_kv, n_k].
// params: fields of ggml_h2o_attn_params, as arrays: rows [n_head_kv, n_k], first [n_k], limits [n_q], sinks [n_head],
// extra_rows [n_head_kv, n_tiles, n].
static std::tuple<py::array, std::optional<py::array>, py::array, py::array> attention(
        const py::array & q, const py::array & k, const py::array & v, const std::string & type_name,
        const std::string & backend, int n_threads, const py::KWArgs<py::object> & params) {
    ops_graph graph("attention", backend, n_threads);

    const ggml_type type = find_type(type_name);

    static const std::set<std::string> NAMES = { "rows", "n_k", "first", "limits", "sinks", "scale", "softcap", "sums",
        "extra_rows", "tile", "offset" };
    for (const auto & param : params) {
        if (!NAMES.count(py::str(param.first))) {
            throw py::type_error("[ops_attention] has no argument " + std::string(py::str(param.first)));
        }
    }
    const auto given = [&](const char * name) { return params.contains(name) && !params[name].is_none(); };
    const auto ints  = [&](const char * name) {
        return given(name) ? graph.input(params[name].cast<py::array_t<int32_t>>(), GGML_TYPE_I32) : nullptr;
    };
    const auto number = [&](const char * name, auto missing) {
        return given(name) ? params[name].cast<decltype(missing)>() : missing;
    };

    ggml_h2o_attn_params p = {};
    p.rows    = ints("rows");
    p.n_k     = number("n_k", (int64_t) 0);
    p.first   = ints("first");
    p.limits  = ints("limits");
    p.sinks   = given("sinks") ? graph.input(params["sinks"].cast<py::array_t<float>>(), GGML_TYPE_F32) : nullptr;
    p.scale   = number("scale", 1.0f);
    p.softcap = number("softcap", 0.0f);
    p.sums    = (ggml_h2o_attn_sums) number("sums", 0);

    p.extra.rows   = ints("extra_rows");
    p.extra.tile   = number("tile", 1);
    p.extra.offset = number("offset", 0);

    const ggml_h2o_attn_result res = ggml_h2o_attn(graph.ctx(), graph.input_of_heads(q, GGML_TYPE_F32),
        graph.input_of_heads(k, type), graph.input_of_heads(v, type), &p);

    std::vector<ggml_tensor *> outputs = { res.o, res.m, res.l };
    if (res.sums) {
        outputs.push_back(res.sums);
    }
    graph.compute(outputs);

    const std::vector<py::ssize_t> queries = { q.shape(0), q.shape(1) };

    return {
        graph.output(res.o, { q.shape(1), q.shape(0), (py::ssize_t) res.o->ne[0] }),
        res.sums ? std::optional(graph.output(res.sums, 3)) : std::nullopt,
        graph.output(res.m, queries),
        graph.output(res.l, queries),
    };
}

// q is [n_head, n_q, d_k], k is [n_head_kv, n_k, bytes of a row in Q4_0 or Q8_0], excluded is [n_head_kv, n_excluded]
static py::array top_keys(
        const py::array & q, const py::array_t<uint8_t> & k, int n_top, const std::optional<py::array_t<int32_t>> & excluded, int tile, int offset,
        const std::string & backend, int n_threads) {
    ops_graph graph("top_keys", backend, n_threads);

    const bool is_q4_0 = k.shape(2) == (py::ssize_t) ggml_row_size(GGML_TYPE_Q4_0, q.shape(2));

    ggml_tensor * t = ggml_h2o_top_keys(graph.ctx(), graph.input_of_heads(q, GGML_TYPE_F32),
        graph.input_of_heads(k, is_q4_0 ? GGML_TYPE_Q4_0 : GGML_TYPE_Q8_0),
        excluded ? graph.input(*excluded, GGML_TYPE_I32) : nullptr, n_top, tile, offset);
    graph.compute({ t });

    return graph.output(t, 3);
}

// Weights are bytes of this type [n_rows, n_bytes], x is [n_columns, n]; of experts, with ids [n_tokens, n_used],
// [n_experts, n_rows, n_bytes] and [n_tokens, 1 or n_used, n].
static py::array product(const py::array_t<uint8_t> & weights, const std::string & type, const py::array & x,
        bool by_h2o, int n_threads, const std::optional<py::array_t<int32_t>> & ids) {
    ops_graph graph("product", "cpu", n_threads);

    ggml_tensor * w = graph.input(weights, find_type(type));
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
    m.def("ops_attention", &attention, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("type"), py::arg("backend"),
        py::arg("n_threads"));
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
