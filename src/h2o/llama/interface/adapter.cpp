#include "h2o/llama/interface/adapter.h"

#include "h2o/llama/memory/bytes.h"

#include "llama-adapter.h"

#include "ggml-backend.h"

#include <map>
#include <string>
#include <vector>

uint64_t llama_h2o_adapter_hash(const llama_adapter_lora * adapter) {
    // in order
    const std::map<std::string, llama_adapter_lora_weight> weights(adapter->ab_map.begin(), adapter->ab_map.end());

    uint64_t hash = h2o_hash(&adapter->alpha, sizeof(adapter->alpha));
    for (const auto & [name, weight] : weights) {
        hash = h2o_hash(name.c_str(), name.size() + 1, hash);
        for (const ggml_tensor * t : { weight.a, weight.b }) {
            std::vector<uint8_t> data(ggml_nbytes(t));
            ggml_backend_tensor_get(t, data.data(), 0, data.size());
            hash = h2o_hash(&t->type, sizeof(t->type), hash);
            hash = h2o_hash(t->ne, sizeof(t->ne), hash);
            hash = h2o_hash(data.data(), data.size(), hash);
        }
    }
    return hash;
}
