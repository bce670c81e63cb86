#include "h2o/llama/adapter.h"

#include "llama-adapter.h"

#include "ggml-backend.h"

#include <map>
#include <string>
#include <vector>

// FNV-1a
static uint64_t hashed(uint64_t hash, const void * data, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        hash = (hash ^ ((const uint8_t *) data)[i])*0x100000001b3;
    }
    return hash;
}

uint64_t llama_h2o_adapter_hash(const llama_adapter_lora * adapter) {
    // in order
    const std::map<std::string, llama_adapter_lora_weight> weights(adapter->ab_map.begin(), adapter->ab_map.end());

    uint64_t hash = hashed(0xcbf29ce484222325, &adapter->alpha, sizeof(adapter->alpha));
    for (const auto & [name, weight] : weights) {
        hash = hashed(hash, name.c_str(), name.size() + 1);
        for (const ggml_tensor * t : { weight.a, weight.b }) {
            std::vector<uint8_t> data(ggml_nbytes(t));
            ggml_backend_tensor_get(t, data.data(), 0, data.size());
            hash = hashed(hash, &t->type, sizeof(t->type));
            hash = hashed(hash, t->ne,    sizeof(t->ne));
            hash = hashed(hash, data.data(), data.size());
        }
    }
    return hash;
}
