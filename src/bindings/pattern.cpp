#include "bindings/bindings.h"

#include <pybind11/stl.h>

#include <string>
#include <vector>

// of upstream's src/unicode.h; its common/ has another header of that name
std::vector<std::string> unicode_regex_split(
        const std::string & text, const std::vector<std::string> & patterns, bool byte_encode);

void init_pattern(py::module_ & m) {
    m.def("split_text", [](const std::string & text, const std::vector<std::string> & patterns) {
        return unicode_regex_split(text, patterns, false);
    }, py::arg("text"), py::arg("patterns"), py::call_guard<without_gil>(),
        "The pieces of a text that a pre-tokenizer with these patterns makes of it.");
}
