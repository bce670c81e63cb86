#include "ops-graph.h"
#include "types.h"

#include "ggml/attention/attention.h"
#include "ggml/top-keys/top-keys.h"
#include "ggml/keys/keys.h"
#include "ggml/product/product.h"
#include "h2o/graph/softmax.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <tuple>

using shape        = std::vector<py::ssize_t>;
using state_arrays = std::tuple<py::array, py::array, py::array>; // m, l, o

static shape shape_of(const py::array & a) {
    return shape(a.shape(), a.shape() + a.ndim());
}

static py::array max_rows(const py::array & a, const std::string & type, const std::string & backend, int n_threads) {
    ops_graph graph("max_rows", backend, n_threads);

    ggml_tensor * t = ggml_max_rows(graph.ctx(), graph.input(a, find_type(type)));
    graph.compute({ t });

    shape res = shape_of(a);
    res.back() = 1;

    return graph.output(t, res);
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

    shape res = shape_of(a);
    res[res.size() - 2] = indices.shape(indices.ndim() - 1);
    res.back() = t->ne[0];

    return graph.output(t, res);
}

static state_arrays state_outputs(const ops_graph & graph, const h2o_softmax_state & state, shape queries) {
    const auto m = graph.output(state.m, queries);
    const auto l = graph.output(state.l, queries);
    queries.push_back(state.o->ne[0]);

    return { m, l, graph.output(state.o, queries) };
}

static state_arrays softmax_state(const py::array & logits, const py::array & v, float scale, const std::string & backend, int n_threads) {
    ops_graph graph("softmax_state", backend, n_threads);

    ggml_tensor * kq = ggml_cont(graph.ctx(), graph.input(logits, GGML_TYPE_F32));
    ggml_tensor * vt = ggml_transpose(graph.ctx(), graph.input(v, GGML_TYPE_F32));

    ggml_tensor * weights;
    const h2o_softmax_state state = h2o_softmax_state_build(graph.ctx(), kq, scale, vt, &weights);
    graph.compute({ state.m, state.l, state.o });

    shape queries = shape_of(logits);
    queries.pop_back();

    return state_outputs(graph, state, queries);
}

// m and l are [..., n_q, 1]
static state_arrays fuse(const std::vector<py::array> & a, const std::vector<py::array> & b, const std::string & backend, int n_threads) {
    ops_graph graph("fuse", backend, n_threads);

    const auto input = [&](const std::vector<py::array> & state) {
        return h2o_softmax_state {
            graph.input(state[0], GGML_TYPE_F32),
            graph.input(state[1], GGML_TYPE_F32),
            graph.input(state[2], GGML_TYPE_F32),
        };
    };

    const h2o_softmax_state state = h2o_softmax_state_fuse(graph.ctx(), input(a), input(b));
    graph.compute({ state.m, state.l, state.o });

    shape queries = shape_of(a[0]);
    queries.pop_back();

    return state_outputs(graph, state, queries);
}

static py::array column_sums(const py::array & weights, int64_t n_head_kv, const std::string & backend, int n_threads) {
    ops_graph graph("column_sums", backend, n_threads);

    ggml_tensor * t = h2o_column_sums_build(graph.ctx(), ggml_cont(graph.ctx(), graph.input(weights, GGML_TYPE_F32)), n_head_kv);
    graph.compute({ t });

    shape res = shape_of(weights);
    res.erase(res.end() - 2);
    res[res.size() - 2] = n_head_kv;

    return graph.output(t, res);
}

// rows, first and last are [n_tiles, n_tile_rows], all or none; or rows alone, [n_head_kv, n_q, n_tile_rows]
struct query_tiles {
    const std::optional<py::array_t<int32_t>> & rows;
    const std::optional<py::array_t<int32_t>> & first;
    const std::optional<py::array_t<int32_t>> & last;
    int size;
    int offset;
};

static ggml_h2o_attn_result attention_build(
        ops_graph & graph, const py::array & q, const py::array & k, const py::array & v, const std::string & type_name,
        const py::array_t<int32_t> & rows, const std::optional<py::array_t<int32_t>> & first, const std::optional<py::array_t<int32_t>> & limits,
        const query_tiles & tiles, float scale, int sums) {
    const ggml_type type = find_type(type_name);

    const auto optional_input = [&](const std::optional<py::array_t<int32_t>> & a) { return a ? graph.input(*a, GGML_TYPE_I32) : nullptr; };

    return ggml_h2o_attn(graph.ctx(), graph.input(q, GGML_TYPE_F32), input_of_type(graph, k, type), input_of_type(graph, v, type),
        graph.input(rows, GGML_TYPE_I32), optional_input(first), optional_input(limits),
        optional_input(tiles.rows), optional_input(tiles.first), optional_input(tiles.last), tiles.size, tiles.offset, nullptr, 0, scale, sums);
}

// q is [n_block, n_head, n_q, d_k], k and v are [n_head_kv, n_kv, d], rows is [n_block, n_head_kv, n_k], first is [n_k],
// limits is [n_block, n_q], tile_rows, tile_first and tile_last as in query_tiles, these four contiguous; sums is a
// ggml_h2o_attn_sums, those of each query are [n_q, n_head_kv, n_k]
static std::tuple<py::array, std::optional<py::array>, py::array, py::array> attention(
        const py::array & q, const py::array & k, const py::array & v, const std::string & type,
        const py::array_t<int32_t> & rows, const std::optional<py::array_t<int32_t>> & first, const std::optional<py::array_t<int32_t>> & limits,
        const std::optional<py::array_t<int32_t>> & tile_rows, const std::optional<py::array_t<int32_t>> & tile_first, const std::optional<py::array_t<int32_t>> & tile_last,
        int tile_size, int tile_offset,
        float scale, int sums, const std::string & backend, int n_threads) {
    ops_graph graph("attention", backend, n_threads);

    const ggml_h2o_attn_result res = attention_build(graph, q, k, v, type, rows, first, limits, { tile_rows, tile_first, tile_last, tile_size, tile_offset }, scale, sums);
    if (sums) {
        graph.compute({ res.o, res.sums, res.m, res.l });
    } else {
        graph.compute({ res.o, res.m, res.l });
    }

    const shape queries = { q.shape(0), q.shape(1), q.shape(2) };
    const shape summed  = sums == GGML_H2O_ATTN_QUERY_SUMS ? shape { q.shape(2), rows.shape(1), rows.shape(2) } : shape_of(rows);

    return {
        graph.output(res.o, { q.shape(0), q.shape(2), q.shape(1), (py::ssize_t) res.o->ne[0] }),
        sums ? std::optional(graph.output(res.sums, summed)) : std::nullopt,
        graph.output(res.m, queries),
        graph.output(res.l, queries),
    };
}

static double attention_seconds(
        const py::array & q, const py::array & k, const py::array & v, const std::string & type,
        const py::array_t<int32_t> & rows, const std::optional<py::array_t<int32_t>> & first, const std::optional<py::array_t<int32_t>> & limits,
        int sums, int n_threads,
        const std::optional<py::array_t<int32_t>> & tile_rows, const std::optional<py::array_t<int32_t>> & tile_first, const std::optional<py::array_t<int32_t>> & tile_last,
        int tile_size, int tile_offset) {
    ops_graph graph("attention", "cpu", n_threads);

    graph.compute({ attention_build(graph, q, k, v, type, rows, first, limits, { tile_rows, tile_first, tile_last, tile_size, tile_offset }, 1.0f, sums).o });

    return graph.compute_seconds();
}

// q is [n_head, n_q, d_k], k is [n_head_kv, n_k, bytes of a row], taken is [n_head_kv, n_taken]
static py::array top_keys(
        const py::array & q, const py::array_t<uint8_t> & k, int n_top, const std::optional<py::array_t<int32_t>> & taken,
        const std::string & backend, int n_threads) {
    ops_graph graph("top_keys", backend, n_threads);

    // as in an index: the heads of a row stand together
    ggml_tensor * rows = graph.input_rows(k.attr("swapaxes")(0, 1), GGML_TYPE_Q4_0);

    ggml_tensor * t = ggml_h2o_top_keys(graph.ctx(), graph.input(q, GGML_TYPE_F32), ggml_permute(graph.ctx(), rows, 0, 2, 1, 3),
        taken ? graph.input(*taken, GGML_TYPE_I32) : nullptr, n_top);
    graph.compute({ t });

    return graph.output(t, { k.shape(0), q.shape(1), n_top });
}

static double mul_mat_seconds(const py::array & a, const py::array & b, int n_threads) {
    ops_graph graph("mul_mat", "cpu", n_threads);

    graph.compute({ ggml_mul_mat(graph.ctx(), graph.input(a, GGML_TYPE_F32), graph.input(b, GGML_TYPE_F32)) });

    return graph.compute_seconds();
}

// weights are bytes of Q8_0 [n_rows, n_bytes], x is [n_columns, n]
static ggml_tensor * product_build(ops_graph & graph, const py::array_t<uint8_t> & weights, const py::array & x, bool by_h2o) {
    ggml_tensor * t = ggml_mul_mat(graph.ctx(), graph.input_rows(weights, GGML_TYPE_Q8_0), graph.input(x, GGML_TYPE_F32));
    if (by_h2o) {
        ggml_h2o_product_hint(t);
    }
    return t;
}

static py::array product(const py::array_t<uint8_t> & weights, const py::array & x, bool by_h2o, int n_threads) {
    ops_graph graph("product", "cpu", n_threads);

    ggml_tensor * t = product_build(graph, weights, x, by_h2o);
    graph.compute({ t });

    return graph.output(t, { x.shape(0), weights.shape(0) });
}

static double product_seconds(const py::array_t<uint8_t> & weights, const py::array & x, bool by_h2o, int n_threads) {
    ops_graph graph("product", "cpu", n_threads);

    graph.compute({ product_build(graph, weights, x, by_h2o) });

    return graph.compute_seconds();
}

// k is [n, n_head, d] of float16 or float32, cosines and sines are [n, n_pairs]
static std::vector<std::string> attention_isas() {
    std::vector<std::string> names;
    for (int i = 0; const char * name = ggml_h2o_attn_isa(i); ++i) {
        names.push_back(name);
    }
    return names;
}

static void set_attention_isa(const std::string & name) {
    const auto names = attention_isas();
    const auto it    = std::find(names.begin(), names.end(), name);
    if (it == names.end()) {
        throw std::invalid_argument("[attention] this CPU has no kernel '" + name + "'");
    }
    ggml_h2o_attn_set_isa(it - names.begin());
}

// Arguments are checked in h2o_llama/ops.py.
void init_ops(py::module_ & m) {
    m.def("ops_max_rows", &max_rows, py::arg("a"), py::arg("type"), py::arg("backend"), py::arg("n_threads"));
    m.def("ops_get_rows", &get_rows, py::arg("a"), py::arg("type"), py::arg("indices"), py::arg("backend"), py::arg("n_threads"));
    m.def("ops_softmax_state", &softmax_state, py::arg("logits"), py::arg("v"), py::arg("scale"), py::arg("backend"), py::arg("n_threads"));
    m.def("ops_fuse", &fuse, py::arg("a"), py::arg("b"), py::arg("backend"), py::arg("n_threads"));
    m.def("ops_column_sums", &column_sums, py::arg("weights"), py::arg("n_head_kv"), py::arg("backend"), py::arg("n_threads"));
    m.def("ops_attention", &attention, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("type"), py::arg("rows"), py::arg("first").none(true), py::arg("limits").none(true), py::arg("tile_rows").none(true), py::arg("tile_first").none(true), py::arg("tile_last").none(true), py::arg("tile_size"), py::arg("tile_offset"), py::arg("scale"), py::arg("sums"), py::arg("backend"), py::arg("n_threads"));

    m.def("ops_top_keys", &top_keys, py::arg("q"), py::arg("k"), py::arg("n_top"), py::arg("taken").none(true), py::arg("backend"), py::arg("n_threads"));

    // for tests and benchmarks
    m.def("ops_attention_isas", &attention_isas, "CPU kernels of H2O's operators on this machine, the best first, by the names that they have for attention.");
    m.def("ops_set_attention_isa", &set_attention_isa, py::arg("name"), "Use this CPU kernel from now on.");
    m.def("ops_attention_seconds", &attention_seconds, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("type"), py::arg("rows"), py::arg("first").none(true), py::arg("limits").none(true), py::arg("sums"), py::arg("n_threads"), py::arg("tile_rows") = py::none(), py::arg("tile_first") = py::none(), py::arg("tile_last") = py::none(), py::arg("tile_size") = 1, py::arg("tile_offset") = 0);
    m.def("ops_product", &product, py::arg("weights"), py::arg("x"), py::arg("by_h2o"), py::arg("n_threads"), "Products with Q8_0 weights [n_rows, bytes of a row], of x [n_columns, n].");
    m.def("ops_product_seconds", &product_seconds, py::arg("weights"), py::arg("x"), py::arg("by_h2o"), py::arg("n_threads"));
    m.def("ops_mul_mat_seconds", &mul_mat_seconds, py::arg("a"), py::arg("b"), py::arg("n_threads"));
}
