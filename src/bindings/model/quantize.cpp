#include "bindings/bindings.h"

#include "bindings/llama-call.h"
#include "bindings/model/gguf-check.h"

#include "llama.h"

#include <pybind11/typing.h>

#include <cerrno>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

static const std::string OWNER = "[quantize] ";

// What llama.cpp makes without an importance matrix. The IQ1 to IQ3 types end the process where no point of their grid
// is near.
static const std::vector<std::pair<std::string, llama_ftype>> FILE_TYPES = {
    { "F32",    LLAMA_FTYPE_ALL_F32       },
    { "F16",    LLAMA_FTYPE_MOSTLY_F16    },
    { "BF16",   LLAMA_FTYPE_MOSTLY_BF16   },
    { "Q8_0",   LLAMA_FTYPE_MOSTLY_Q8_0   },
    { "Q6_K",   LLAMA_FTYPE_MOSTLY_Q6_K   },
    { "Q5_K_M", LLAMA_FTYPE_MOSTLY_Q5_K_M },
    { "Q5_K_S", LLAMA_FTYPE_MOSTLY_Q5_K_S },
    { "Q5_1",   LLAMA_FTYPE_MOSTLY_Q5_1   },
    { "Q5_0",   LLAMA_FTYPE_MOSTLY_Q5_0   },
    { "Q4_K_M", LLAMA_FTYPE_MOSTLY_Q4_K_M },
    { "Q4_K_S", LLAMA_FTYPE_MOSTLY_Q4_K_S },
    { "IQ4_NL", LLAMA_FTYPE_MOSTLY_IQ4_NL },
    { "IQ4_XS", LLAMA_FTYPE_MOSTLY_IQ4_XS },
    { "Q4_1",   LLAMA_FTYPE_MOSTLY_Q4_1   },
    { "Q4_0",   LLAMA_FTYPE_MOSTLY_Q4_0   },
    { "Q3_K_L", LLAMA_FTYPE_MOSTLY_Q3_K_L },
    { "Q3_K_M", LLAMA_FTYPE_MOSTLY_Q3_K_M },
    { "Q3_K_S", LLAMA_FTYPE_MOSTLY_Q3_K_S },
    { "Q2_K",   LLAMA_FTYPE_MOSTLY_Q2_K   },
};

// Upstream computes in threads of its own, but it checks and logs in this one.
static void quantize(const std::string & path_in, const std::string & path_out, llama_ftype ftype, int32_t n_threads) {
    gguf_check(path_in, OWNER);

    std::exception_ptr interrupt;
    std::string reason;
    uint32_t status;
    int write_error;
    {
        llama_call call(/*verbose =*/ false, llama_call::THROW);
        call.on_line = [&](const char * text) {
            if (text[0] != '[' || interrupt) {
                return; // not the line before a tensor: [  1/ 30]
            }
            if (without_gil::is_ending()) {
                throw std::runtime_error("Python is ending");
            }
            py::gil_scoped_acquire gil;
            if (PyErr_CheckSignals() != 0) {
                interrupt = std::make_exception_ptr(py::error_already_set());
                throw std::runtime_error("interrupted");
            }
        };

        llama_model_quantize_params params = llama_model_quantize_default_params();
        params.nthread          = n_threads;
        params.ftype            = ftype;
        params.allow_requantize = true;

        errno = 0;
        status =
            llama_call::run(OWNER, [&] { return llama_model_quantize(path_in.c_str(), path_out.c_str(), &params); });
        write_error = errno;
        reason = call.reason();
    }

    if (interrupt) {
        std::rethrow_exception(interrupt);
    }
    // the reason is "iostream error"; errno is what the failed write left
    if (status != 0 && write_error != 0 && reason.find("iostream") != std::string::npos) {
        py::gil_scoped_acquire gil;
        errno = write_error;
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, path_out.c_str());
        throw py::error_already_set();
    }
    if (status != 0) {
        throw h2o_error(OWNER + "llama.cpp cannot quantize " + path_in + ": " + reason);
    }
    // a write that failed without a word is a tensor that reaches beyond the end
    gguf_check(path_out, OWNER);
}

void init_quantize(py::module_ & m) {
    m.def(
        "quantize",
        [](const py::bytes & path_in, const py::bytes & path_out, int type, int32_t n_threads) {
            const std::string in = path_in, out = path_out;
            computing no_gil;
            quantize(in, out, (llama_ftype) type, n_threads);
        },
        py::arg("path_in"), py::arg("path_out"), py::arg("type"), py::arg("n_threads"));
    m.def("quantize_types", [] {
        py::typing::Dict<py::str, py::int_> types;
        for (const auto & [name, ftype] : FILE_TYPES) {
            types[py::str(name)] = (int) ftype;
        }
        return types;
    }, "What the core takes for a type of weights, by name.");
}
