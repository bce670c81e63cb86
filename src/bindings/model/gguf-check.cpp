#include "bindings/model/gguf-check.h"

#include "bindings/bindings.h"

#include "ggml-cpp.h"
#include "gguf.h"

#include <cstdint>
#include <filesystem>
#include <stdexcept>

static constexpr uint32_t N_LAYER_MAX = 512; // LLAMA_MAX_LAYERS

namespace {

// The metadata of a file, which upstream's parser has checked for counts, sizes and overflows.
class gguf_file {
public:
    gguf_file(const std::string & path, const std::string & where) : path(path), where(where) {
        llama_call call(/*verbose =*/ false);
        ggml_context * ctx_meta = nullptr;
        gguf.reset(gguf_init_from_file(path.c_str(), { /*.no_alloc =*/ true, /*.ctx =*/ &ctx_meta }));
        meta.reset(ctx_meta);
        if (!gguf) {
            fail(call.reason());
        }
    }

    void check_tensors() const {
        const uint64_t file_size = std::filesystem::file_size(path);
        const uint64_t data      = gguf_get_data_offset(gguf.get());

        for (int64_t i = 0; i < gguf_get_n_tensors(gguf.get()); ++i) {
            const std::string name = gguf_get_tensor_name(gguf.get(), i);
            const uint64_t    size = gguf_get_tensor_size(gguf.get(), i), offset = gguf_get_tensor_offset(gguf.get(), i);

            if (data > file_size || offset > file_size - data || size > file_size - data - offset) {
                fail("the data of tensor '" + name + "' reaches beyond the end of the file (" + std::to_string(file_size) +
                     " bytes): the file is truncated");
            }
            check_type(name, gguf_get_tensor_type(gguf.get(), i));
        }
    }

    void check_hparams() const {
        const int64_t     id   = find("general.architecture", GGUF_TYPE_STRING);
        const std::string arch = id < 0 ? "" : gguf_get_val_str(gguf.get(), id);

        const uint32_t n_layer = get_u32(arch + ".block_count", 1);
        if (n_layer < 1 || n_layer > N_LAYER_MAX) {
            fail(arch + ".block_count is " + std::to_string(n_layer) + ", expected 1 to " + std::to_string(N_LAYER_MAX));
        }

        for (const char * name : { "layer_norm_epsilon", "layer_norm_rms_epsilon", "group_norm_epsilon" }) {
            const std::string key = arch + ".attention." + name;
            const int64_t     id  = find(key, GGUF_TYPE_FLOAT32);
            if (id >= 0 && !(gguf_get_val_f32(gguf.get(), id) >= 0.0f)) {
                fail(key + " is " + std::to_string(gguf_get_val_f32(gguf.get(), id)) + ", expected 0 or more");
            }
        }

        const uint32_t n_head      = get_u32(arch + ".attention.head_count", 0); // recurrent models have none
        const uint32_t n_embd      = get_u32(arch + ".embedding_length", 0);
        const uint32_t n_embd_head = get_u32(arch + ".attention.key_length", n_head > 0 ? n_embd/n_head : 0);
        const uint32_t n_rot       = get_u32(arch + ".rope.dimension_count", 0);
        if (n_rot % 2 != 0 || (n_embd_head > 0 && n_rot > n_embd_head)) {
            fail(arch + ".rope.dimension_count is " + std::to_string(n_rot) + ", expected an even number up to the head size " + std::to_string(n_embd_head));
        }
    }

private:
    [[noreturn]] void fail(const std::string & reason) const {
        throw std::invalid_argument(where + path + " is not a valid GGUF model file: " + reason);
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

    // index of a key with a value of this type, -1 if there is none: the loader complains about another type
    int64_t find(const std::string & key, gguf_type type) const {
        const int64_t id = gguf_find_key(gguf.get(), key.c_str());
        return id >= 0 && gguf_get_kv_type(gguf.get(), id) == type ? id : -1;
    }

    uint32_t get_u32(const std::string & key, uint32_t missing) const {
        const int64_t id = find(key, GGUF_TYPE_UINT32);
        return id < 0 ? missing : gguf_get_val_u32(gguf.get(), id);
    }

    const std::string path;
    const std::string where;

    gguf_context_ptr gguf;
    ggml_context_ptr meta;
};

} // namespace

void gguf_check(const std::string & path, const std::string & where) {
    const gguf_file file(path, where);
    file.check_tensors();
    file.check_hparams();
}
