#include "bindings/model/adapter.h"

#include "bindings/llama-call.h"
#include "bindings/model/gguf-file.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

// in upstream's llama-model.h, for its tests
const std::vector<std::pair<std::string, ggml_tensor *>> & llama_internal_get_tensor_map(const llama_model * model);

namespace {

// The two factors of B·A, which is added to a weight w. A is w->ne[0] wide.
struct factors {
    const ggml_tensor * a = nullptr;
    const ggml_tensor * b = nullptr;
};

// What upstream's loader does not look at.
class adapter_check : public gguf_file {
public:
    adapter_check(const llama_model * model, const std::string & path)
        : gguf_file(path, "[Llama] " + path + " is no LoRA adapter of this model: ") {
        check_gguf();
        for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
            weights[name] = tensor;
        }
    }

    void run(const std::string & architecture) const {
        expect("general.type", "adapter");
        expect("adapter.type", "lora");
        expect("general.architecture", architecture);
        if (gguf_find_key(gguf.get(), "adapter.alora.invocation_tokens") >= 0) {
            fail("it is an activated one (aLoRA), which only works in a server: h2o-llama serve");
        }
        for (const auto & [name, factors] : pairs()) {
            const auto weight = weights.find(name);
            if (weight == weights.end()) {
                fail("the model has no tensor '" + name + "'");
            }
            check(name, *weight->second, factors);
        }
    }

private:
    void expect(const std::string & key, const std::string & expected) const {
        const std::string value = get_str(key);
        if (value != expected) {
            fail("its " + key + " is '" + value + "', expected '" + expected + "'");
        }
    }

    // by the weights' names
    std::map<std::string, factors> pairs() const {
        std::map<std::string, factors> res;
        for (ggml_tensor * t = ggml_get_first_tensor(meta.get()); t; t = ggml_get_next_tensor(meta.get(), t)) {
            const std::string name = t->name;
            const size_t      dot  = name.rfind('.');
            const std::string kind = dot == std::string::npos ? "" : name.substr(dot);
            if (kind == ".lora_a") {
                res[name.substr(0, dot)].a = t;
            } else if (kind == ".lora_b") {
                res[name.substr(0, dot)].b = t;
            }
        }
        if (res.empty()) {
            fail("it has no tensors NAME.lora_a and NAME.lora_b");
        }
        return res;
    }

    void check(const std::string & name, const ggml_tensor & w, const factors & f) const {
        if (!f.a || !f.b) {
            fail("of '" + name + "' it has only one of lora_a and lora_b");
        }
        for (const auto * t : { f.a, f.b }) {
            if (!is_weight(t->type)) {
                fail("'" + std::string(t->name) + "' must not have the type " + ggml_type_name(t->type));
            }
        }

        // a table of embeddings is read by its rows, so its factors lie the other way round
        const std::string embedding    = "token_embd.weight";
        const bool is_embedding = name.size() >= embedding.size() &&
            name.compare(name.size() - embedding.size(), embedding.size(), embedding) == 0;
        const int64_t     rank         = std::max<int64_t>(f.b->ne[0], 1);

        const std::string a =
            is_embedding ? text({ rank, w.ne[1], w.ne[2], w.ne[3] }) : text({ w.ne[0], rank, w.ne[2], w.ne[3] });
        const std::string b = text({ rank, w.ne[is_embedding ? 0 : 1], w.ne[2], w.ne[3] });
        if (shape(*f.a) != a || shape(*f.b) != b) {
            fail("for '" + name + "' of shape " + shape(w) + " it has lora_a " + shape(*f.a) + " and lora_b " +
                shape(*f.b) + ", expected " + a + " and " + b);
        }
        if (name == embedding && weights.count("output.weight") == 0) {
            fail("it changes '" + name + "', which is the model's output too: llama.cpp cannot do that");
        }
        if (w.type == GGML_TYPE_NVFP4) {
            fail("it changes '" + name + "', whose type is nvfp4: llama.cpp cannot do that");
        }
    }

    static std::string text(std::vector<int64_t> sizes) {
        while (sizes.size() > 2 && sizes.back() == 1) {
            sizes.pop_back();
        }
        std::string res;
        for (const int64_t n : sizes) {
            res += (res.empty() ? "[" : ", ") + std::to_string(n);
        }
        return res + "]";
    }

    static std::string shape(const ggml_tensor & t) {
        return text({ t.ne[0], t.ne[1], t.ne[2], t.ne[3] });
    }

    std::map<std::string, const ggml_tensor *> weights;
};

} // namespace

llama_adapter_lora * load_adapter(llama_model * model, const std::string & path, bool verbose) {
    char architecture[128] = "";
    llama_model_meta_val_str(model, "general.architecture", architecture, sizeof(architecture));

    const adapter_check check(model, path);
    check.run(architecture);

    llama_call call(verbose, llama_call::THROW); // upstream asserts that metadata is of the right kind
    llama_adapter_lora * adapter = llama_adapter_lora_init(model, path.c_str());
    if (!adapter) {
        check.fail(call.reason());
    }
    return adapter;
}
