#pragma once

#include "bindings/bindings.h"
#include "bindings/model/overrides.h"

#include "llama.h"

#include <pybind11/typing.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// How a file becomes a model.
struct model_options {
    int32_t n_gpu_layers = 0;
    bool    verbose      = false;

    std::vector<std::string> rpc_servers;  // HOST:PORT of each ggml-rpc-server: takes layers before this machine's GPUs
    std::optional<int32_t>   main_gpu;     // one of layer_devices(rpc_servers), for all layers
    std::vector<float>       tensor_split; // how much each of them holds; empty: what its memory allows

    // weights into other layouts, where upstream has some: without, H2O's products multiply them if they are as fast
    bool repack = true;

    bool use_mmap  = true;
    bool use_mlock = false;

    kv_overrides overrides; // checked by gguf_check_overrides()

    std::vector<std::pair<std::string, float>> lora; // files of adapters, and what each is multiplied by
};

// A loaded model and its vocabulary. Immutable, so any thread may use it.
class model {
public:
    model(const std::string & path, const model_options & options);

    std::vector<llama_token> tokenize(const std::string & text, bool add_special, bool parse_special) const;
    std::string detokenize(const std::vector<llama_token> & tokens, bool special) const;

    py::typing::Dict<py::str, py::str> metadata() const;
    std::string desc() const;

    int32_t n_vocab() const { return llama_vocab_n_tokens(vocab); }

    std::shared_ptr<llama_model> ptr;
    const llama_vocab * vocab = nullptr;

    uint32_t n_ctx_train = 0; // of the file: a context with YaRN makes llama.cpp's larger

    // LoRA, which every context applies: the adapters, which are the model's, and their scales
    std::vector<llama_adapter_lora *> adapters;
    std::vector<float>                adapter_scales;

private:
    kv_overrides overrides;
};
