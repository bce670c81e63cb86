#include "bindings/model/model.h"

#include "bindings/llama-call.h"
#include "bindings/model/adapter.h"
#include "bindings/model/devices.h"
#include "bindings/model/gguf-check.h"
#include "bindings/model/gguf-file.h"

#include "common.h"
#include "ggml/product/product.h"
#include "llama-h2o.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

static llama_load_mode load_mode(const model_options & options) {
    if (options.use_mlock) {
        return options.use_mmap ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MLOCK;
    }
    return options.use_mmap ? LLAMA_LOAD_MODE_AUTO : LLAMA_LOAD_MODE_NONE;
}

model::model(const std::string & path, const model_options & options) : overrides(options.overrides) {
    computing::check();
    gguf_check(path, "[Llama] ");

    llama_call call(options.verbose, llama_call::THROW);

    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers    = options.n_gpu_layers;
    params.use_extra_bufts = options.repack || !ggml_h2o_product_wants_plain_weights();
    params.load_mode       = load_mode(options);

    const std::vector<llama_model_kv_override> llama_overrides = to_llama(overrides);
    params.kv_overrides = llama_overrides.data();

    // an override that llama.cpp does not read is probably misspelt
    kv_overrides unread = overrides;
    call.on_line = [&unread](const char * line) { unread.erase(used_override(line)); };

    std::vector<float> tensor_split = options.tensor_split;
    tensor_split.resize(llama_max_devices());

    ptr.reset(llama_call::run("[Llama] ", [&] {
        std::vector<ggml_backend_dev_t> devices;
        if (!options.rpc_servers.empty() || options.main_gpu || !options.tensor_split.empty()) {
            devices = layer_devices(options.rpc_servers);
            devices.push_back(nullptr);
            params.devices = devices.data();
        }
        if (options.main_gpu) {
            params.split_mode = LLAMA_SPLIT_MODE_NONE;
            params.main_gpu   = *options.main_gpu;
        }
        if (!options.tensor_split.empty()) {
            params.tensor_split = tensor_split.data();
        }
        return llama_model_load_from_file(path.c_str(), params);
    }), computing::free<llama_model_free, llama_model>);
    if (!ptr) {
        throw h2o_error("[Llama] llama.cpp cannot load " + path + ": " + call.reason());
    }
    if (!unread.empty()) {
        throw h2o_error("[Llama] kv_overrides: llama.cpp does not read '" + unread.begin()->first + "' from " + path);
    }
    vocab       = llama_model_get_vocab(ptr.get());
    n_ctx_train = llama_model_n_ctx_train(ptr.get());

    for (const auto & [adapter, scale] : options.lora) {
        adapters.push_back(load_adapter(ptr.get(), adapter, options.verbose));
        adapter_scales.push_back(scale);
    }
}

std::vector<llama_token> model::tokenize(const std::string & text, bool add_special, bool parse_special) const {
    if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) {
        throw h2o_error("[Llama.tokenize] this model has no tokenizer: pass token ids");
    }
    if (text.size() > (size_t) std::numeric_limits<int32_t>::max()) {
        throw std::invalid_argument(
            "[Llama.tokenize] text must be smaller than 2 GiB, got " + std::to_string(text.size()) + " bytes");
    }

    llama_call call(/*verbose =*/ false);
    return llama_call::run(
        "[Llama.tokenize] ", [&] { return common_tokenize(vocab, text, add_special, parse_special); });
}

// Piece by piece: the bytes of a concatenation are the concatenation of the bytes.
std::string model::detokenize(const std::vector<llama_token> & tokens, bool special) const {
    llama_call call(/*verbose =*/ false);
    return llama_call::run("[Llama.detokenize] ", [&] {
        std::string text;
        for (const llama_token token : tokens) {
            text += common_token_to_piece(vocab, token, special);
        }
        return text;
    });
}

template <typename F>
static std::string get_str(F get) {
    std::string buf(256, '\0');
    int32_t n = get(buf.data(), buf.size());
    if (n >= (int32_t) buf.size()) {
        buf.resize(n + 1);
        n = get(buf.data(), buf.size());
    }
    buf.resize(n < 0 ? 0 : n);
    return buf;
}

// Metadata is whatever bytes the file holds.
static py::str decode_utf8(const std::string & bytes) {
    return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(bytes.data(), bytes.size(), "replace"));
}

py::typing::Dict<py::str, py::str> model::metadata() const {
    py::typing::Dict<py::str, py::str> result;
    for (int32_t i = 0; i < llama_model_meta_count(ptr.get()); ++i) {
        const auto text = [&](const auto & get) {
            return decode_utf8(get_str([&](char * buf, size_t size) { return get(ptr.get(), i, buf, size); }));
        };
        result[text(llama_model_meta_key_by_index)] = text(llama_model_meta_val_str_by_index);
    }
    for (const auto & [key, value] : overrides) {
        result[decode_utf8(key)] = decode_utf8(to_text(value));
    }
    return result;
}

std::string model::desc() const {
    return get_str([&](char * buf, size_t size) { return llama_model_desc(ptr.get(), buf, size); });
}

template <auto get>
static auto of_model(const model & self) {
    return get(self.ptr.get());
}

void init_model(py::module_ & m) {
    py::class_<model, std::shared_ptr<model>>(m, "Model")
        .def(py::init([](const py::bytes & path, int32_t n_gpu_layers, bool verbose,
                const std::vector<std::string> & rpc_servers, bool repack, bool use_mmap, bool use_mlock,
                std::optional<int32_t> main_gpu, const std::vector<float> & tensor_split,
                const kv_overrides & overrides, const std::vector<std::pair<py::bytes, float>> & lora) {
            const std::string path_str = path;
            const model_options options = { n_gpu_layers, verbose, rpc_servers, main_gpu, tensor_split, repack,
                use_mmap, use_mlock, overrides, { lora.begin(), lora.end() } };
            without_gil no_gil;
            return std::make_shared<model>(path_str, options);
        }), py::arg("path"), py::arg("n_gpu_layers"), py::arg("verbose"), py::arg("rpc_servers"),
            py::arg("repack") = true, py::kw_only(), py::arg("use_mmap") = true, py::arg("use_mlock") = false,
            py::arg("main_gpu") = py::none(), py::arg("tensor_split") = std::vector<float>(), py::arg("kv_overrides") = kv_overrides(),
            py::arg("lora") = std::vector<std::pair<py::bytes, float>>())
        .def_static("check_overrides", [](const py::bytes & path, const kv_overrides & overrides) {
            const std::string path_str = path;
            without_gil no_gil;
            gguf_check_overrides(path_str, overrides);
        }, py::arg("path"), py::arg("kv_overrides"))
        .def("tokenize", [](const model & self, const py::bytes & text, bool add_special, bool parse_special) {
            const std::string text_str = text;
            without_gil no_gil;
            return self.tokenize(text_str, add_special, parse_special);
        }, py::arg("text"), py::arg("add_special"), py::arg("parse_special"))
        .def("detokenize", [](const model & self, const std::vector<llama_token> & tokens, bool special) {
            return py::bytes(self.detokenize(tokens, special));
        }, py::arg("tokens"), py::arg("special"))
        .def("is_eog", [](const model & self, llama_token token) {
            return llama_vocab_is_eog(self.vocab, token);
        }, py::arg("token"))
        .def_property_readonly("metadata",      &model::metadata)
        .def_property_readonly("desc",          &model::desc)
        .def_property_readonly("n_vocab",       &model::n_vocab)
        .def_property_readonly("n_ctx_train",   [](const model & self) { return self.n_ctx_train; })
        .def_property_readonly("n_learned_positions", &of_model<llama_h2o_n_learned_positions>)
        .def_property_readonly("n_embd",        &of_model<llama_model_n_embd>)
        .def_property_readonly("n_embd_input",  &of_model<llama_model_n_embd_inp>)
        .def_property_readonly("n_embd_output", &of_model<llama_model_n_embd_out>)
        .def_property_readonly("n_layer",       &of_model<llama_model_n_layer>)
        .def_property_readonly("n_head",        &of_model<llama_model_n_head>)
        .def_property_readonly("n_head_kv",     &of_model<llama_model_n_head_kv>)
        .def_property_readonly("n_swa",         &of_model<llama_model_n_swa>)
        .def_property_readonly("n_params",      &of_model<llama_model_n_params>)
        .def_property_readonly("size",          &of_model<llama_model_size>)
        .def_property_readonly("has_encoder",   &of_model<llama_model_has_encoder>)
        .def_property_readonly("is_recurrent", [](const model & self) {
            return llama_model_is_recurrent(self.ptr.get()) || llama_model_is_hybrid(self.ptr.get());
        })
        .def_property_readonly("is_spm", [](const model & self) {
            return llama_vocab_type(self.vocab) == LLAMA_VOCAB_TYPE_SPM;
        })
        .def_property_readonly("token_bos",     [](const model & self) { return llama_vocab_bos(self.vocab); })
        .def_property_readonly("token_eos",     [](const model & self) { return llama_vocab_eos(self.vocab); });

    m.def("tensor_starts", [](const py::bytes & path) { return gguf_file(path, "").tensor_starts(); }, py::arg("path"),
        "Where the tensors of a GGUF file begin; empty if it is none.");
    m.def("layer_devices", [](const std::vector<std::string> & rpc_servers) {
        without_gil no_gil;
        llama_call call(/*verbose =*/ false);

        std::vector<std::string> names;
        for (ggml_backend_dev_t device : layer_devices(rpc_servers)) {
            names.push_back(ggml_backend_dev_name(device));
        }
        return names;
    }, py::arg("rpc_servers"), "Names of what may hold layers, besides the CPU.");
}
