#include "bindings/log.h"

#include "bindings/bindings.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

static std::mutex            lines_mutex;
static std::vector<log_line> waiting_lines;

void log_add(log_line line) {
    std::lock_guard<std::mutex> lock(lines_mutex);
    waiting_lines.push_back(std::move(line));
}

static void log_to_python(const std::vector<log_line> & lines) {
    const py::object logger = py::module_::import("logging").attr("getLogger")("h2o_llama.llama_cpp");
    for (const auto & line : lines) {
        // Python's levels are ten times llama.cpp's, and 0 is none of them
        const int level = std::max(10*line.level, 1);
        if (logger.attr("isEnabledFor")(level).cast<bool>()) {
            logger.attr("log")(level, "%s", py::reinterpret_steal<py::str>(
                PyUnicode_DecodeUTF8(line.text.data(), line.text.size(), "replace")));
        }
    }
}

// Python no longer lets this thread in.
static bool is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
    return !Py_IsInitialized() || Py_IsFinalizing();
#else
    return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

void log_hand_over() {
    std::vector<log_line> lines;
    {
        std::lock_guard<std::mutex> lock(lines_mutex);
        lines.swap(waiting_lines);
    }
    if (lines.empty() || is_ending()) {
        return;
    }
    py::gil_scoped_acquire gil;
    py::error_scope pending; // of the call that ends
    try {
        log_to_python(lines);
    } catch (py::error_already_set & e) {
        if (e.matches(PyExc_KeyboardInterrupt)) {
            PyErr_SetInterrupt(); // not lost: Python raises it later
        } else {
            e.discard_as_unraisable("h2o_llama.llama_cpp");
        }
    }
}
