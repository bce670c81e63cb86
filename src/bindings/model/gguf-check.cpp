#include "bindings/model/gguf-check.h"

#include "bindings/bindings.h"
#include "bindings/model/gguf-file.h"

#include <cstdint>
#include <filesystem>
#include <stdexcept>

namespace {

class model_check : public gguf_file {
public:
    using gguf_file::gguf_file;

    // as the loader will read it
    void apply(const std::string & key, const kv_overrides::mapped_type & value) {
        const int64_t id = gguf_find_key(gguf.get(), key.c_str());
        if (id >= 0) {
            check_kind(key, value, gguf_get_kv_type(gguf.get(), id));
        }
        if (const auto * number = std::get_if<int64_t>(&value)) {
            if (*number < 0) {
                gguf_set_val_i32(gguf.get(), key.c_str(), *number);
            } else {
                gguf_set_val_u32(gguf.get(), key.c_str(), *number);
            }
        } else if (const auto * real = std::get_if<double>(&value)) {
            gguf_set_val_f32(gguf.get(), key.c_str(), *real);
        } else if (const auto * text = std::get_if<std::string>(&value)) {
            gguf_set_val_str(gguf.get(), key.c_str(), text->c_str());
        }
    }

    void check_tensors() const {
        const uint64_t file_size = std::filesystem::file_size(path);
        const uint64_t data      = gguf_get_data_offset(gguf.get());

        for (int64_t i = 0; i < gguf_get_n_tensors(gguf.get()); ++i) {
            const std::string name = gguf_get_tensor_name(gguf.get(), i);
            const uint64_t size = gguf_get_tensor_size(gguf.get(), i), offset = gguf_get_tensor_offset(gguf.get(), i);

            if (data > file_size || offset > file_size - data || size > file_size - data - offset) {
                fail("the data of tensor '" + name + "' reaches beyond the end of the file (" +
                    std::to_string(file_size) + " bytes): the file is truncated");
            }
            check_type(name, gguf_get_tensor_type(gguf.get(), i));
        }
    }

    std::string architecture() const {
        return get_str("general.architecture");
    }

    void check_projector() const {
        if (architecture() != "clip") {
            fail("its architecture is '" + architecture() + "', expected 'clip'");
        }
        // the loader takes it as optional, the graph does not
        const std::string type = get_str("clip.projector_type");
        if (type == "mlp" && ggml_get_tensor(meta.get(), "mm.2.weight") && !ggml_get_tensor(meta.get(), "mm.2.bias")) {
            fail("there is mm.2.weight, but no mm.2.bias");
        }

        // these do not interpolate: a kernel that looks for a position which is not there aborts
        const ggml_tensor * positions = ggml_get_tensor(meta.get(), "v.position_embd.weight");
        const uint32_t      n_patch   = get_u32("clip.vision.patch_size", 0); // the loader refuses 0
        if (positions && n_patch > 0 && (type == "mlp" || type == "ldp" || type == "ldpv2" || type == "adapter")) {
            const uint64_t n_side = get_u32("clip.vision.image_size", 0)/n_patch;
            const uint64_t n_want = n_side*n_side + (ggml_get_tensor(meta.get(), "v.class_embd") ? 1 : 0);
            if (n_want > (uint64_t) positions->ne[1]) {
                fail("v.position_embd.weight has " + std::to_string(positions->ne[1]) + " rows, expected " +
                    std::to_string(n_want) + ", one for each patch of an image");
            }
        }
    }

    void check_hparams() const {
        const std::string arch = architecture();

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
            fail(arch + ".rope.dimension_count is " + std::to_string(n_rot) +
                ", expected an even number up to the head size " + std::to_string(n_embd_head));
        }
    }

private:
    static void check_kind(const std::string & key, const kv_overrides::mapped_type & value, gguf_type type) {
        const auto expect = [&](bool ok, const char * expected) {
            if (!ok) {
                throw std::invalid_argument(
                    "[Llama] kv_overrides['" + key + "'] must be " + expected + ", got " + to_text(value));
            }
        };
        const auto * number = std::get_if<int64_t>(&value);
        switch (type) {
            case GGUF_TYPE_BOOL:    expect(std::holds_alternative<bool>       (value), "True or False"); break;
            case GGUF_TYPE_STRING:  expect(std::holds_alternative<std::string>(value), "a str");         break;
            case GGUF_TYPE_FLOAT32:
            case GGUF_TYPE_FLOAT64: expect(std::holds_alternative<double>     (value), "a float");       break;
            case GGUF_TYPE_ARRAY:   expect(false, "left out: the file has an array there");              break;
            case GGUF_TYPE_INT8:
            case GGUF_TYPE_INT16:
            case GGUF_TYPE_INT32:
            case GGUF_TYPE_INT64:   expect(number && *number <= INT32_MAX, "an integer of 32 bits");     break;
            default:                expect(number && *number >= 0, "an integer from 0 to 2**32 - 1");
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

        const bool is_vector = contains({ "norm.weight", ".bias" });
        const bool is_matrix = contains({ "token_embd.", "output.weight", "attn_q", "attn_k", "attn_v", "attn_output",
            "ffn_gate.", "ffn_up.", "ffn_down." });

        if (is_vector ? type != GGML_TYPE_F32 : is_matrix && !is_weight(type)) {
            fail("tensor '" + name + "' must not have the type " + ggml_type_name(type));
        }
    }
};

} // namespace

void gguf_check(const std::string & path, const std::string & where) {
    const model_check file(path, where + path + " is not a valid GGUF model file: ");
    file.check_gguf();
    file.check_tensors();
    file.check_hparams();
}

void gguf_check_projector(const std::string & path, const std::string & where) {
    const model_check file(path, where + path + " is not a valid projector: ");
    file.check_gguf();
    file.check_tensors();
    file.check_projector();
}

void gguf_check_overrides(const std::string & path, const kv_overrides & overrides) {
    model_check file(path, "[Llama] kv_overrides: ");
    if (file.is_gguf()) {
        for (const auto & [key, value] : overrides) {
            file.apply(key, value);
        }
        file.check_hparams();
    }
}
