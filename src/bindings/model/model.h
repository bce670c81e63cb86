#pragma once

#include "bindings/bindings.h"

#include "llama.h"

#include <pybind11/typing.h>

#include <memory>
#include <string>
#include <vector>

// A loaded model; the vocabulary goes with it. Immutable, so any thread may use it.
class model {
public:
    // rpc_servers: HOST:PORT of each ggml-rpc-server that takes layers before the GPUs of this machine do
    // repack: weights into other layouts, where upstream has some: without, H2O's products multiply them if they are as fast
    model(const std::string & path, int32_t n_gpu_layers, bool verbose, const std::vector<std::string> & rpc_servers, bool repack);

    std::vector<llama_token> tokenize(const std::string & text, bool add_special, bool parse_special) const;
    std::string detokenize(const std::vector<llama_token> & tokens, bool special) const;

    py::typing::Dict<py::str, py::str> metadata() const;
    std::string desc() const;

    int32_t n_vocab() const { return llama_vocab_n_tokens(vocab); }

    std::shared_ptr<llama_model> ptr;
    const llama_vocab * vocab = nullptr;
};
