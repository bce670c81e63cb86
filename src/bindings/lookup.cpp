#include "bindings.h"

#include "h2o/text/lookup.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

using row_array = py::array_t<int32_t, py::array::c_style>; // [n, 2]: position, query that asked for it

static uint32_t to_u32(int64_t value, const char * name) {
    if (value < 0 || value > UINT32_MAX) {
        throw std::invalid_argument(std::string("[lookup] ") + name + " must be in [0, 2^32), got " + std::to_string(value));
    }
    return value;
}

static h2o_lookup make_lookup(
        int64_t chunk_size, int64_t tile, int64_t budget, int64_t sink_tokens, int64_t local_window) {
    h2o_lookup_params params;
    params.chunk_size   = to_u32(chunk_size,          "chunk_size");
    params.tile         = to_u32(tile,                "tile");
    params.budget       = to_u32(budget,              "budget");
    params.sink_tokens  = to_u32(sink_tokens,         "sink_tokens");
    params.local_window = to_u32(local_window,        "local_window");

    return h2o_lookup(params);
}

static void append(h2o_lookup & self, const py::array_t<int32_t, py::array::c_style> & ids) {
    if (ids.ndim() != 1) {
        throw std::invalid_argument("[lookup] ids must have one dimension");
    }
    self.append(ids.data(), ids.size());
}

static row_array choose(h2o_lookup & self, int64_t first, int64_t last, const std::optional<row_array> & log) {
    std::vector<h2o_lookup_row> rows;
    if (log) {
        if (log->ndim() != 2 || log->shape(1) != 2) {
            throw std::invalid_argument("[lookup] the log must be [n, 2]: position and query");
        }
        for (py::ssize_t i = 0; i < log->shape(0); ++i) {
            rows.push_back({ log->at(i, 0), log->at(i, 1) });
        }
    }
    const size_t n_old = rows.size();

    self.choose(to_u32(first, "first"), to_u32(last, "last"), rows);

    row_array res({ (py::ssize_t) (rows.size() - n_old), (py::ssize_t) 2 });
    for (size_t i = n_old; i < rows.size(); ++i) {
        res.mutable_at(i - n_old, 0) = rows[i].pos;
        res.mutable_at(i - n_old, 1) = rows[i].query;
    }
    return res;
}

void init_lookup(py::module_ & m) {
    py::class_<h2o_lookup>(m, "Lookup")
        .def(py::init(&make_lookup), py::kw_only(),
            py::arg("chunk_size"), py::arg("tile"), py::arg("budget"), py::arg("sink_tokens"), py::arg("local_window"))
        .def("append", &append, py::arg("ids").noconvert())
        .def("truncate", [](h2o_lookup & self, int64_t n) { self.truncate(to_u32(n, "n")); }, py::arg("n"))
        .def("choose", &choose, py::arg("first"), py::arg("last"), py::arg("log").noconvert() = py::none())
        .def_property_readonly("n_tokens", &h2o_lookup::n_tokens)
        .def_property_readonly("bytes",    &h2o_lookup::bytes);
}
