// The library as a whole: its backends, its log and what its exceptions become.

#include "bindings/bindings.h"

#include "h2o/store/codec/codec.h"

#include "llama.h"

#include <pybind11/stl.h>

#include <cstring>
#include <stdexcept>
#include <string>

#ifdef GGML_BACKEND_DL
#include <dlfcn.h>

#include <filesystem>

// A wheel holds ggml's CPU backend once for each kind of CPU, in libh2o-ggml's folder. ggml takes the best that this
// CPU can run.
static void load_backends() {
    Dl_info ggml;
    if (!dladdr((const void *) &ggml_backend_load_all_from_path, &ggml)) {
        throw std::runtime_error("h2o_llama: the folder of ggml's library was not found");
    }
    const std::filesystem::path folder = std::filesystem::path(ggml.dli_fname).parent_path();

    ggml_backend_load_all_from_path(folder.c_str());
    if (!ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) {
        throw std::runtime_error("h2o_llama: " + folder.string() + " has no CPU backend for this machine. Install the "
            "package again, or from its source: pip install --force-reinstall --no-binary h2o-llama h2o-llama");
    }
}
#else
static void load_backends() {} // linked
#endif

// A message may quote bytes from a model file or a path, which need not be UTF-8.
static void set_error(PyObject * type, const char * what, const char * option = nullptr) {
    const auto message = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(what, strlen(what), "replace"));
    const py::object error = py::handle(type)(message);
    if (option) {
        error.attr("option") = option;
    }
    PyErr_SetObject(type, error.ptr());
}

// `option` of an UnsupportedModelError
static const char * option_of(h2o_reason reason) {
    return reason == h2o_reason::LOOKUP ? "lookup_budget" : reason == h2o_reason::POSITIONS ? "positions" : nullptr;
}

static void translate_exceptions() {
    static const auto error_type = [](const char * name) {
        return py::object(py::module_::import("h2o_llama.errors").attr(name)).release().ptr();
    };
    static PyObject * type        = error_type("H2OError");
    static PyObject * memory      = error_type("OutOfMemoryError");
    static PyObject * unsupported = error_type("UnsupportedModelError");

    py::register_exception_translator([](std::exception_ptr error) {
        try {
            std::rethrow_exception(error);
        } catch (const h2o_error & e) {
            const bool is_known = e.reason != h2o_reason::NONE;
            PyObject * known = e.reason == h2o_reason::MEMORY ? memory : unsupported;
            set_error(is_known ? known : type, e.what(), option_of(e.reason));
        } catch (const std::bad_alloc &) {
            set_error(memory, "[h2o] not enough memory");
        } catch (const h2o_codec_error & e) {
            set_error(type, e.what());
        } catch (const std::invalid_argument & e) {
            set_error(PyExc_ValueError, e.what());
        } catch (const py::builtin_exception &) {
            throw; // pybind11's own
        } catch (const std::runtime_error & e) { // llama.cpp's, in a call without a name for it: an RPC server stopped
            set_error(type, e.what());
        }
    });
}

ggml_type find_type(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const char * type_name = ggml_type_name((ggml_type) i);
        if (type_name && name == type_name) {
            return (ggml_type) i;
        }
    }
    throw std::invalid_argument("unknown type '" + name + "'");
}

void init_library(py::module_ & m) {
    translate_exceptions();
    without_gil::register_end();

    // from the first import on nothing is printed but what a verbose llama_call, or Python's logging, lets through
    llama_log_set(llama_call::on_log, nullptr);
    ggml_set_abort_callback(llama_call::on_abort);

    load_backends(); // first: without any, llama.cpp looks for some in the working directory
    llama_backend_init();

    m.def("check_fork", &computing::check, "Raise H2OError in a process that was forked from one that has computed.");
    m.def("is_forked",  &computing::is_forked, "Whether this is such a process.");

    m.attr("UPSTREAM_COMMIT") = ggml_commit();
    m.def("type_size", [](const std::string & type) {
        const ggml_type t = find_type(type);
        return (double) ggml_type_size(t)/ggml_blck_size(t);
    }, py::arg("type"), "Bytes per element.");
}
