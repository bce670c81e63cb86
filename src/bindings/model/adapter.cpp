#include "bindings/model/adapter.h"

#include "bindings/llama-call.h"
#include "bindings/model/gguf-file.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

// in upstream's llama-model.h, for its tests
const std::vector<std::pair<std::string, ggml_tensor *>> & llama_internal_get_tensor_map(const llama_model * model);

namespace {

// What upstream's loader does not look at. It does look at metadata, and at two dimensions of the factors A and B of
// B·A, which is added to a weight.
class adapter_check : public gguf_file {
public:
    explicit adapter_check(const std::string & path)
        : gguf_file(path, "[Llama] " + path + " is no LoRA adapter of this model: ") {
        check_gguf();
    }

    void run(const llama_model * model) const {
        if (gguf_find_key(gguf.get(), "adapter.alora.invocation_tokens") >= 0) {
            fail("it is an activated one (aLoRA), which only works in a server: h2o-llama serve");
        }
        if (gguf_get_n_tensors(gguf.get()) == 0) {
            fail("it has no tensors");
        }
        std::map<std::string, const ggml_tensor *> weights;
        for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
            weights[name] = tensor;
        }
        for (ggml_tensor * t = ggml_get_first_tensor(meta.get()); t; t = ggml_get_next_tensor(meta.get(), t)) {
            const std::string factor = t->name;
            const std::string name   = factor.substr(0, factor.rfind('.'));
            if (factor != name + ".lora_a" && factor != name + ".lora_b") {
                continue;
            }
            const auto weight = weights.find(name);
            if (weight == weights.end()) {
                fail("the model has no tensor '" + name + "'");
            }
            check(name, *weight->second, *t, weights.count("output.weight") > 0);
        }
    }

private:
    void check(
            const std::string & name, const ggml_tensor & weight, const ggml_tensor & factor, bool has_output) const {
        const ggml_tensor * a = ggml_get_tensor(meta.get(), (name + ".lora_a").c_str());
        const ggml_tensor * b = ggml_get_tensor(meta.get(), (name + ".lora_b").c_str());
        // a table of embeddings is read by its rows, so its factors lie the other way round
        const bool is_embedding = name.find("token_embd.weight") != std::string::npos;

        if (!is_weight(factor.type)) {
            fail("'" + std::string(factor.name) + "' must not have the type " + ggml_type_name(factor.type));
        }
        if (factor.ne[2] != weight.ne[2] || factor.ne[3] != weight.ne[3] ||
            (is_embedding && a && b && a->ne[0] != b->ne[0])) {
            fail("'" + std::string(factor.name) + "' has incorrect shape");
        }
        if (name == "token_embd.weight" && !has_output) {
            fail("it changes '" + name + "', which is the model's output too: llama.cpp cannot do that");
        }
        if (weight.type == GGML_TYPE_NVFP4) {
            fail("it changes '" + name + "', whose type is nvfp4: llama.cpp cannot do that");
        }
    }
};

} // namespace

llama_adapter_lora * load_adapter(llama_model * model, const std::string & path, bool verbose) {
    const adapter_check check(path);
    check.run(model);

    llama_call call(verbose, llama_call::THROW); // upstream asserts that metadata is of the right kind
    llama_adapter_lora * adapter = llama_adapter_lora_init(model, path.c_str());
    if (!adapter) {
        check.fail(call.reason());
    }
    return adapter;
}
