#include "bindings.h"
#include "llama-call.h"

#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "gguf.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// Weights of each type in a file, by ggml's names.
static std::map<std::string, int64_t> count_weights(const std::string & path) {
    llama_call call(/*verbose =*/ false);
    ggml_context * ctx_meta = nullptr;
    gguf_context_ptr gguf(gguf_init_from_file(path.c_str(), { /*.no_alloc =*/ true, /*.ctx =*/ &ctx_meta }));
    ggml_context_ptr meta(ctx_meta);
    if (!gguf) {
        throw std::invalid_argument("[info] " + path + " is not a valid GGUF model file: " + call.reason());
    }
    std::map<std::string, int64_t> result;
    for (ggml_tensor * t = ggml_get_first_tensor(meta.get()); t; t = ggml_get_next_tensor(meta.get(), t)) {
        result[ggml_type_name(t->type)] += ggml_nelements(t);
    }
    return result;
}

// What ggml's kernels were compiled for, as far as it says which of them multiply.
static std::vector<std::string> cpu_features() {
    std::vector<std::string> result;
    if (ggml_cpu_has_avx2()) {
        result.push_back("avx2");
    }
    if (ggml_cpu_has_avx512()) {
        result.push_back("avx512");
    }
    if (ggml_cpu_has_amx_int8()) {
        result.push_back("amx");
    }
    return result;
}

void init_weight_types(py::module_ & m) {
    m.def("count_weights", [](const py::bytes & path) { return count_weights(path); }, py::arg("path"));
    m.def("cpu_features", cpu_features);
}
