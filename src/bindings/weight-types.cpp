#include "bindings.h"
#include "llama-call.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"
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

// What the CPU backend in use was compiled for, as far as it says which of its kernels multiply.
static std::vector<std::string> cpu_features() {
    static const std::map<std::string, std::string> names = { { "AVX2", "avx2" }, { "AVX512", "avx512" }, { "AMX_INT8", "amx" } };

    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    auto * get_features = (ggml_backend_get_features_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_get_features");

    std::vector<std::string> result;
    for (auto * feature = get_features(reg); feature->name; ++feature) {
        const auto it = names.find(feature->name);
        if (it != names.end()) {
            result.push_back(it->second);
        }
    }
    return result;
}

void init_weight_types(py::module_ & m) {
    m.def("count_weights", [](const py::bytes & path) { return count_weights(path); }, py::arg("path"));
    m.def("cpu_features", cpu_features);
}
