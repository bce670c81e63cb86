#include "gguf-check.h"

#include "llama-call.h"

#include "ggml-cpp.h"
#include "gguf.h"

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <stdexcept>

static constexpr uint32_t N_LAYER_MAX = 512; // LLAMA_MAX_LAYERS

namespace {

class gguf_checker {
public:
    gguf_checker(const std::string & path, const std::string & where) : path(path), where(where) {
        parse();
    }

    void check() const {
        const std::string arch = get_arch();

        check_tensors();
        check_hparams(arch);
        check_vocab(arch);
    }

private:
    // Upstream's parser checks counts, sizes and overflows; with no_alloc it reads the header only.
    void parse() {
        llama_call call(/*verbose =*/ false);
        ggml_context * ctx_meta = nullptr;
        gguf.reset(gguf_init_from_file(path.c_str(), { /*.no_alloc =*/ true, /*.ctx =*/ &ctx_meta }));
        meta.reset(ctx_meta);
        if (!gguf) {
            fail(call.reason());
        }
    }

    [[noreturn]] void fail(const std::string & reason) const {
        throw std::invalid_argument(where + path + " is not a valid GGUF model file: " + reason);
    }

    void check_tensors() const {
        const uint64_t file_size = std::filesystem::file_size(path);
        const uint64_t data      = gguf_get_data_offset(gguf.get());
        const int64_t  n_tensors = gguf_get_n_tensors(gguf.get());

        // the first file of a split model may hold metadata alone
        if (n_tensors == 0 && gguf_find_key(gguf.get(), "split.count") < 0) {
            fail("it holds no tensors (a vocabulary-only file?)");
        }
        for (int64_t i = 0; i < n_tensors; ++i) {
            const std::string name   = gguf_get_tensor_name  (gguf.get(), i);
            const uint64_t    size   = gguf_get_tensor_size  (gguf.get(), i);
            const uint64_t    offset = gguf_get_tensor_offset(gguf.get(), i);

            if (size == 0) {
                fail("tensor '" + name + "' has no elements");
            }
            if (data > file_size || offset > file_size - data || size > file_size - data - offset) {
                fail("the data of tensor '" + name + "' reaches beyond the end of the file (" + std::to_string(file_size) +
                     " bytes): the file is truncated");
            }
            check_type(name, gguf_get_tensor_type(gguf.get(), i));
        }
    }

    // The loader does not look at types, and a kernel that meets one it was not made for aborts or crashes.
    void check_type(const std::string & name, ggml_type type) const {
        const auto contains = [&name](std::initializer_list<const char *> parts) {
            for (const char * part : parts) {
                if (name.find(part) != std::string::npos) {
                    return true;
                }
            }
            return false;
        };

        // Q8_1 and Q8_K are for activations
        const bool is_weight = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
            (ggml_is_quantized(type) && type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K);
        const bool is_vector = contains({ "norm.weight", ".bias" });
        const bool is_matrix = contains({ "token_embd.", "output.weight", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate.", "ffn_up.", "ffn_down." });

        if (is_vector ? type != GGML_TYPE_F32 : is_matrix && !is_weight) {
            fail("tensor '" + name + "' must not have the type " + ggml_type_name(type));
        }
    }

    std::string get_arch() const {
        const int64_t id = find("general.architecture", GGUF_TYPE_STRING);
        if (id < 0) {
            fail("it does not name its architecture (general.architecture)");
        }
        return gguf_get_val_str(gguf.get(), id);
    }

    void check_hparams(const std::string & arch) const {
        const auto n_layer = get_u32(arch + ".block_count");
        if (n_layer && (*n_layer < 1 || *n_layer > N_LAYER_MAX)) {
            fail(arch + ".block_count is " + std::to_string(*n_layer) + ", expected 1 to " + std::to_string(N_LAYER_MAX));
        }

        for (const char * name : { "layer_norm_epsilon", "layer_norm_rms_epsilon", "group_norm_epsilon" }) {
            const std::string key = arch + ".attention." + name;
            const int64_t     id  = find(key, GGUF_TYPE_FLOAT32);
            if (id >= 0 && !(gguf_get_val_f32(gguf.get(), id) >= 0.0f)) {
                fail(key + " is " + std::to_string(gguf_get_val_f32(gguf.get(), id)) + ", expected 0 or more");
            }
        }

        // recurrent models have no heads
        const uint32_t n_head    = get_u32(arch + ".attention.head_count").value_or(0);
        const uint32_t n_head_kv = get_u32(arch + ".attention.head_count_kv").value_or(0);
        if (n_head_kv > 0 && n_head % n_head_kv != 0) {
            fail(arch + ".attention.head_count " + std::to_string(n_head) + " is no multiple of head_count_kv " + std::to_string(n_head_kv));
        }

        const uint32_t n_embd      = get_u32(arch + ".embedding_length").value_or(0);
        const uint32_t n_embd_head = get_u32(arch + ".attention.key_length").value_or(n_head > 0 ? n_embd/n_head : 0);
        const uint32_t n_rot       = get_u32(arch + ".rope.dimension_count").value_or(0);
        if (n_rot % 2 != 0 || (n_embd_head > 0 && n_rot > n_embd_head)) {
            fail(arch + ".rope.dimension_count is " + std::to_string(n_rot) + ", expected an even number up to the head size " + std::to_string(n_embd_head));
        }
    }

    // Without a tokenizer the loader makes as many dummy tokens as the metadata says, before it looks at the embedding.
    void check_vocab(const std::string & arch) const {
        const ggml_tensor * embedding = meta ? ggml_get_tensor(meta.get(), "token_embd.weight") : nullptr;
        const uint32_t      n_vocab   = get_u32(arch + ".vocab_size").value_or(0);

        if (gguf_find_key(gguf.get(), "tokenizer.ggml.tokens") < 0 && embedding && n_vocab > embedding->ne[1]) {
            fail(arch + ".vocab_size is " + std::to_string(n_vocab) + ", but token_embd.weight has " + std::to_string(embedding->ne[1]) + " rows");
        }
    }

    // index of a key with a value of this type, -1 if there is none: the loader complains about another type
    int64_t find(const std::string & key, gguf_type type) const {
        const int64_t id = gguf_find_key(gguf.get(), key.c_str());
        return id >= 0 && gguf_get_kv_type(gguf.get(), id) == type ? id : -1;
    }

    std::optional<uint32_t> get_u32(const std::string & key) const {
        const int64_t id = find(key, GGUF_TYPE_UINT32);
        return id < 0 ? std::nullopt : std::make_optional(gguf_get_val_u32(gguf.get(), id));
    }

    const std::string path;
    const std::string where;

    gguf_context_ptr gguf;
    ggml_context_ptr meta;
};

} // namespace

void gguf_check(const std::string & path, const std::string & where) {
    gguf_checker(path, where).check();
}
