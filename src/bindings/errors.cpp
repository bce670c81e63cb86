#include "bindings.h"

#include "h2o/store/codec/codec.h"

#include <cstring>

// A message may quote bytes from a model file or a path, which need not be UTF-8.
static void set_error(PyObject * type, const char * what) {
    const auto message = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(what, strlen(what), "replace"));
    PyErr_SetObject(type, message.ptr());
}

void init_errors() {
    static PyObject * type = py::object(py::module_::import("h2o_llama.errors").attr("H2OError")).release().ptr();

    py::register_exception_translator([](std::exception_ptr error) {
        try {
            std::rethrow_exception(error);
        } catch (const h2o_error & e) {
            set_error(type, e.what());
        } catch (const h2o_codec_error & e) {
            set_error(type, e.what());
        } catch (const std::invalid_argument & e) {
            set_error(PyExc_ValueError, e.what());
        } catch (const py::builtin_exception &) {
            throw; // pybind11's own
        } catch (const std::runtime_error & e) { // of llama.cpp, in a call that has no name for it: an RPC server is gone
            set_error(type, e.what());
        }
    });
}
