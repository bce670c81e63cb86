#include "bindings/bindings.h"

#include "h2o/config/options.h"
#include "h2o/text/lookup.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <vector>

using id_array  = py::array_t<int32_t, py::array::c_style>; // [n]
using row_array = py::array_t<int32_t, py::array::c_style>; // [n, 2]: position, query that asked for it

static h2o_lookup make_lookup(
        uint32_t chunk_size, uint32_t tile, uint32_t budget, uint32_t sink_tokens, uint32_t local_window) {
    auto params = llama_h2o_default_params();
    params.chunk_size    = chunk_size;
    params.tile          = tile;
    params.lookup_budget = budget;
    params.sink_tokens   = sink_tokens;
    params.local_window  = local_window;
    h2o_check_options(params);
    return h2o_lookup(params);
}

static void append(h2o_lookup & self, const id_array & ids) {
    if (ids.ndim() != 1) {
        throw std::invalid_argument("[lookup] expected ids of one dimension, got " + std::to_string(ids.ndim()));
    }
    self.append(ids.data(), ids.size());
}

// the entries that are added to the log
static row_array choose(h2o_lookup & self, uint32_t first, uint32_t last, const std::optional<row_array> & log) {
    if (log && (log->ndim() != 2 || log->shape(1) != 2)) {
        throw std::invalid_argument("[lookup] expected a log of shape [n, 2]: position and query");
    }
    const size_t n_old = log ? log->shape(0) : 0;

    h2o_lookup_log rows;
    for (size_t i = 0; i < n_old; ++i) {
        rows.push_back({ log->at(i, 0), log->at(i, 1) });
    }
    self.assign_log(std::move(rows), 0);
    self.choose(first, last);

    const auto & all = self.log();
    row_array res({ (py::ssize_t) (all.size() - n_old), (py::ssize_t) 2 });
    for (size_t i = n_old; i < all.size(); ++i) {
        res.mutable_at(i - n_old, 0) = all[i].pos;
        res.mutable_at(i - n_old, 1) = all[i].query;
    }
    return res;
}

void init_lookup(py::module_ & m) {
    py::class_<h2o_lookup>(m, "Lookup")
        .def(py::init(&make_lookup), py::kw_only(),
            py::arg("chunk_size"), py::arg("tile"), py::arg("budget"), py::arg("sink_tokens"), py::arg("local_window"))
        .def("append", &append, py::arg("ids").noconvert())
        .def("truncate", &h2o_lookup::truncate, py::arg("n"))
        .def("choose", &choose, py::arg("first"), py::arg("last"), py::arg("log").noconvert() = py::none())
        .def_property_readonly("n_tokens", [](const h2o_lookup & self) { return self.text().size(); })
        .def_property_readonly("bytes",    &h2o_lookup::bytes);
}
