#include "bindings/bindings.h"

#include "h2o/config/options.h"
#include "h2o/text/lookup.h"

#include <pybind11/stl.h>

#include <utility>
#include <vector>

using row = std::pair<int32_t, int32_t>; // position, query that asked for it

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

// the entries that are added to the log
static std::vector<row> choose(h2o_lookup & self, uint32_t first, uint32_t last, const std::vector<row> & log) {
    h2o_lookup_log rows;
    for (const auto & [pos, query] : log) {
        rows.push_back({ pos, query });
    }
    self.assign_log(std::move(rows), 0);
    self.choose(first, last);

    std::vector<row> res;
    for (size_t i = log.size(); i < self.log().size(); ++i) {
        res.push_back({ self.log()[i].pos, self.log()[i].query });
    }
    return res;
}

void init_lookup(py::module_ & m) {
    py::class_<h2o_lookup>(m, "Lookup")
        .def(py::init(&make_lookup), py::kw_only(),
            py::arg("chunk_size"), py::arg("tile"), py::arg("budget"), py::arg("sink_tokens"), py::arg("local_window"))
        .def("append", [](h2o_lookup & self, const std::vector<int32_t> & ids) { self.append(ids.data(), ids.size()); },
            py::arg("ids"))
        .def("truncate", &h2o_lookup::truncate, py::arg("n"))
        .def("choose", &choose, py::arg("first"), py::arg("last"), py::arg("log"))
        .def_property_readonly("n_tokens", [](const h2o_lookup & self) { return self.text().size(); })
        .def_property_readonly("bytes",    &h2o_lookup::bytes);
}
