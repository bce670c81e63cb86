#include "bindings/h2o-options.h"

#include "bindings/bindings.h"

#include "h2o/config/config.h"
#include "h2o/config/options.h"

#include <pybind11/stl.h>

#include <vector>

llama_h2o_params read_options(const option_values & values) {
    llama_h2o_params res = llama_h2o_default_params();
    for (const auto & [name, value] : values) {
        h2o_set_option(res, name, value);
    }
    return res;
}

static std::vector<std::string> choices(const llama_h2o_option & option) {
    std::vector<std::string> res;
    for (int i = 0; option.choices && option.choices[i]; ++i) {
        res.push_back(option.choices[i]);
    }
    return res;
}

static std::string kind(const llama_h2o_option & option) {
    static const char * const names[] = { "number", "part", "switch", "choice", "text", "layers" }; // by their enum
    return names[option.kind];
}

void init_options(py::module_ & m) {
    py::class_<llama_h2o_option>(m, "H2OOption")
        .def_readonly("name",    &llama_h2o_option::name)
        .def_readonly("flag",    &llama_h2o_option::flag)
        .def_readonly("default", &llama_h2o_option::def)
        .def_readonly("min",     &llama_h2o_option::min)
        .def_readonly("max",     &llama_h2o_option::max)
        .def_readonly("help",    &llama_h2o_option::help)
        .def_property_readonly("kind",    &kind)
        .def_property_readonly("choices", &choices);

    m.def("h2o_options", [] {
        std::vector<llama_h2o_option> res;
        while (const auto * option = llama_h2o_get_option(res.size())) {
            res.push_back(*option);
        }
        return res;
    }, "The options of H2O.");

    m.def("check_h2o", [](const option_values & values) { h2o_config(read_options(values)); }, py::arg("values"),
            "ValueError if an option is out of range, or some do not go together.");
}
