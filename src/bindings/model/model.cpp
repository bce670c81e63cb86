#include "bindings/model/model.h"

#include "bindings/llama-call.h"
#include "bindings/model/gguf-check.h"

#include "ggml/product/product.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <map>
#include <utility>

// in upstream's llama-model.h, for its tests
const std::vector<std::pair<std::string, ggml_tensor *>> & llama_internal_get_tensor_map(const llama_model * model);

// What holds layers: the devices of the servers, then this machine's GPUs, then a null pointer.
static std::vector<ggml_backend_dev_t> devices_with(const std::vector<std::string> & rpc_servers) {
    ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
    if (!rpc) {
        throw h2o_error("rpc_servers: this build has no RPC. Install h2o-llama from its source with it: "
            "pip install . -C cmake.define.GGML_RPC=ON");
    }
    const auto add_server = (ggml_backend_reg_t (*)(const char *)) ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server");

    std::vector<ggml_backend_dev_t> result;
    for (const auto & server : rpc_servers) {
        ggml_backend_reg_t reg;
        try {
            reg = add_server(server.c_str());
        } catch (const std::exception & e) {
            throw h2o_error(std::string(e.what()) + ": start `h2o-llama rpc-server` of this version there");
        }
        for (size_t i = 0; reg && i < ggml_backend_reg_dev_count(reg); ++i) {
            result.push_back(ggml_backend_reg_dev_get(reg, i));
        }
    }
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_GPU) {
            result.push_back(device);
        }
    }
    result.push_back(nullptr);
    return result;
}

model::model(const std::string & path, int32_t n_gpu_layers, bool verbose, const std::vector<std::string> & rpc_servers, bool repack) {
    gguf_check(path, "[Llama] ");

    llama_call call(verbose, llama_call::THROW);

    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers    = n_gpu_layers;
    params.use_extra_bufts = repack || !ggml_h2o_product_wants_plain_weights();

    ptr.reset(llama_call::run("[Llama] ", [&] {
        std::vector<ggml_backend_dev_t> devices;
        if (!rpc_servers.empty()) {
            devices = devices_with(rpc_servers);
            params.devices = devices.data();
        }
        return llama_model_load_from_file(path.c_str(), params);
    }), llama_model_free);
    if (!ptr) {
        throw h2o_error("[Llama] llama.cpp cannot load " + path + ": " + call.reason());
    }
    vocab = llama_model_get_vocab(ptr.get());
}

std::vector<llama_token> model::tokenize(const std::string & text, bool add_special, bool parse_special) const {
    if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) {
        throw h2o_error("[Llama.tokenize] this model has no tokenizer: pass token ids");
    }
    if (text.size() > (size_t) std::numeric_limits<int32_t>::max()) {
        throw std::invalid_argument("[Llama.tokenize] text must be smaller than 2 GiB, got " + std::to_string(text.size()) + " bytes");
    }

    llama_call call(/*verbose =*/ false);
    return llama_call::run("[Llama.tokenize] ", [&] {
        // no token is shorter than a byte, but a few special ones may be added
        std::vector<llama_token> tokens(text.size() + 4);
        int32_t n = llama_tokenize(vocab, text.data(), text.size(), tokens.data(), tokens.size(), add_special, parse_special);
        if (n == std::numeric_limits<int32_t>::min()) {
            throw h2o_error("the text has more than 2^31 tokens");
        }
        if (n < 0) {
            tokens.resize(-n);
            n = llama_tokenize(vocab, text.data(), text.size(), tokens.data(), tokens.size(), add_special, parse_special);
        }
        tokens.resize(n);
        return tokens;
    });
}

// Piece by piece: the bytes of a concatenation are the concatenation of the bytes.
std::string model::detokenize(const std::vector<llama_token> & tokens, bool special) const {
    llama_call call(/*verbose =*/ false);
    return llama_call::run("[Llama.detokenize] ", [&] {
        std::string text;
        std::string piece(64, '\0');
        for (const llama_token token : tokens) {
            int32_t n = llama_token_to_piece(vocab, token, piece.data(), piece.size(), 0, special);
            if (n < 0) {
                piece.resize(-n);
                n = llama_token_to_piece(vocab, token, piece.data(), piece.size(), 0, special);
            }
            text.append(piece, 0, n);
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
        const auto key = get_str([&](char * buf, size_t size) { return llama_model_meta_key_by_index    (ptr.get(), i, buf, size); });
        const auto val = get_str([&](char * buf, size_t size) { return llama_model_meta_val_str_by_index(ptr.get(), i, buf, size); });
        result[decode_utf8(key)] = decode_utf8(val);
    }
    return result;
}

std::string model::desc() const {
    return get_str([&](char * buf, size_t size) { return llama_model_desc(ptr.get(), buf, size); });
}

// Bytes of each weight tensor, by its name. A tensor that is used twice counts once.
static std::map<std::string, size_t> weight_bytes(const model & self) {
    std::map<std::string, size_t> result;
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(self.ptr.get())) {
        result[name] = ggml_nbytes(tensor);
    }
    return result;
}

void init_model(py::module_ & m) {
    py::class_<model, std::shared_ptr<model>>(m, "Model")
        .def(py::init([](const py::bytes & path, int32_t n_gpu_layers, bool verbose, const std::vector<std::string> & rpc_servers, bool repack) {
            const std::string path_str = path;
            py::gil_scoped_release no_gil;
            return std::make_shared<model>(path_str, n_gpu_layers, verbose, rpc_servers, repack);
        }), py::arg("path"), py::arg("n_gpu_layers"), py::arg("verbose"), py::arg("rpc_servers"), py::arg("repack") = true)
        .def("tokenize", [](const model & self, const py::bytes & text, bool add_special, bool parse_special) {
            const std::string text_str = text;
            py::gil_scoped_release no_gil;
            return self.tokenize(text_str, add_special, parse_special);
        }, py::arg("text"), py::arg("add_special"), py::arg("parse_special"))
        .def("detokenize", [](const model & self, const std::vector<llama_token> & tokens, bool special) {
            return py::bytes(self.detokenize(tokens, special));
        }, py::arg("tokens"), py::arg("special"))
        .def("is_eog", [](const model & self, llama_token token) { return llama_vocab_is_eog(self.vocab, token); }, py::arg("token"))
        .def_property_readonly("metadata",      &model::metadata)
        .def_property_readonly("desc",          &model::desc)
        .def_property_readonly("n_vocab",       &model::n_vocab)
        .def_property_readonly("n_ctx_train",   [](const model & self) { return llama_model_n_ctx_train(self.ptr.get()); })
        .def_property_readonly("n_embd",        [](const model & self) { return llama_model_n_embd     (self.ptr.get()); })
        .def_property_readonly("n_layer",       [](const model & self) { return llama_model_n_layer    (self.ptr.get()); })
        .def_property_readonly("n_head",        [](const model & self) { return llama_model_n_head     (self.ptr.get()); })
        .def_property_readonly("n_head_kv",     [](const model & self) { return llama_model_n_head_kv  (self.ptr.get()); })
        .def_property_readonly("n_swa",         [](const model & self) { return llama_model_n_swa      (self.ptr.get()); })
        .def_property_readonly("n_params",      [](const model & self) { return llama_model_n_params   (self.ptr.get()); })
        .def_property_readonly("size",          [](const model & self) { return llama_model_size       (self.ptr.get()); })
        .def_property_readonly("weight_bytes",  &weight_bytes)
        .def_property_readonly("has_encoder",   [](const model & self) { return llama_model_has_encoder(self.ptr.get()); })
        .def_property_readonly("is_recurrent",  [](const model & self) { return llama_model_is_recurrent(self.ptr.get()) || llama_model_is_hybrid(self.ptr.get()); })
        .def_property_readonly("is_spm",        [](const model & self) { return llama_vocab_type(self.vocab) == LLAMA_VOCAB_TYPE_SPM; })
        .def_property_readonly("token_bos",     [](const model & self) { return llama_vocab_bos(self.vocab); })
        .def_property_readonly("token_eos",     [](const model & self) { return llama_vocab_eos(self.vocab); });
}
