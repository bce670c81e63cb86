#include "server/slots.h"

#include "h2o/llama/interface/adapter.h"
#include "json.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <stdexcept>
#include <string>
#include <system_error>

// After llama.cpp's state of the sequence a slot's file has a line of JSON: for each adapter that it was computed with the
// hash of its content, and its scale.

static std::string adapters_to_json(const server_h2o_adapters & adapters) {
    auto used = common_json::array();
    for (const auto & adapter : adapters) {
        if (adapter.scale != 0.0f) {
            used.push_back(common_json { { "hash", llama_h2o_adapter_hash(adapter.ptr) }, { "scale", adapter.scale } });
        }
    }
    return used.dump() + "\n";
}

size_t server_h2o_save_slot(llama_context * ctx, const std::string & path, llama_seq_id id,
        const server_h2o_adapters & adapters, const llama_token * tokens, size_t n_tokens) {
    const std::string unfinished = path + ".part";

    size_t n_bytes = llama_state_seq_save_file(ctx, unfinished.c_str(), id, tokens, n_tokens);
    if (n_bytes > 0) {
        const auto line = adapters_to_json(adapters);
        std::ofstream(unfinished, std::ios::binary | std::ios::app) << line;
        n_bytes += line.size();
    }

    std::error_code error;
    if (n_bytes > 0 && std::filesystem::file_size(unfinished, error) == n_bytes) {
        std::filesystem::rename(unfinished, path, error);
        if (!error) {
            return n_bytes;
        }
    }
    std::filesystem::remove(unfinished, error);
    return 0;
}

void server_h2o_load_adapters(const std::string & path, size_t & n_bytes, server_h2o_adapters & adapters) {
    std::ifstream file(path, std::ios::binary);
    file.seekg(n_bytes);
    std::string line = "[]";
    if (file.peek() == '[' && std::getline(file, line)) { // upstream's checkpoints may follow
        n_bytes += line.size() + 1;
    }
    for (auto & adapter : adapters) {
        adapter.scale = 0.0f;
    }
    for (const auto & used : common_json::parse(line)) {
        const auto hash = used.at("hash").get<uint64_t>();

        const auto found = std::find_if(adapters.begin(), adapters.end(), [&](const auto & adapter) {
            return adapter.scale == 0.0f && llama_h2o_adapter_hash(adapter.ptr) == hash;
        });
        if (found == adapters.end()) {
            throw std::runtime_error("this slot was computed with a LoRA adapter that this server does not have");
        }
        found->scale = used.at("scale").get<float>();
    }
}
