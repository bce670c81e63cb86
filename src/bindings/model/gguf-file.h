#pragma once

#include "bindings/llama-call.h"

#include "ggml-cpp.h"
#include "gguf.h"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

// The metadata of a file, which upstream's parser has checked for counts, sizes and overflows.
class gguf_file {
public:
    // fault begins every message
    gguf_file(const std::string & path, const std::string & fault) : path(path), fault(fault) {
        llama_call call(/*verbose =*/ false);
        ggml_context * ctx_meta = nullptr;
        gguf.reset(gguf_init_from_file(path.c_str(), { /*.no_alloc =*/ true, /*.ctx =*/ &ctx_meta }));
        meta.reset(ctx_meta);
        if (!gguf) {
            reason = call.reason();
        }
    }

    bool is_gguf() const { return gguf != nullptr; }

    void check_gguf() const {
        if (!gguf) {
            fail(reason);
        }
    }

    // Where the tensors begin in the file; empty if it is not GGUF.
    std::vector<uint64_t> tensor_starts() const {
        std::vector<uint64_t> res(gguf ? gguf_get_n_tensors(gguf.get()) : 0);
        for (size_t i = 0; i < res.size(); ++i) {
            res[i] = gguf_get_data_offset(gguf.get()) + gguf_get_tensor_offset(gguf.get(), i);
        }
        return res;
    }

    [[noreturn]] void fail(const std::string & reason) const {
        throw std::invalid_argument(fault + reason);
    }

protected:
    // whether weights may have this type: Q8_1 and Q8_K are for activations
    static bool is_weight(ggml_type type) {
        return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
            (ggml_is_quantized(type) && type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K);
    }

    // index of a key with a value of this type, -1 if there is none: the loader complains about another type
    int64_t find(const std::string & key, gguf_type type) const {
        const int64_t id = gguf_find_key(gguf.get(), key.c_str());
        return id >= 0 && gguf_get_kv_type(gguf.get(), id) == type ? id : -1;
    }

    std::string get_str(const std::string & key) const {
        const int64_t id = find(key, GGUF_TYPE_STRING);
        return id < 0 ? "" : gguf_get_val_str(gguf.get(), id);
    }

    uint32_t get_u32(const std::string & key, uint32_t missing) const {
        const int64_t id = find(key, GGUF_TYPE_UINT32);
        return id < 0 ? missing : gguf_get_val_u32(gguf.get(), id);
    }

    const std::string path;
    const std::string fault;

    std::string reason; // why the file is not GGUF

    gguf_context_ptr gguf;
    ggml_context_ptr meta;
};
