#include "server/slots.h"

#include "h2o/llama/interface/adapter.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ios>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

// A slot's file is llama.cpp's state of the sequence; where it was computed with adapters ADAPTERS, their number, and
// for each the hash of its content and its scale. Numbers are uint64_t, a scale is the bits of a double.
static constexpr uint64_t ADAPTERS = 0x31726f6c206f3268; // "h2o lor1"

namespace {

class writer {
public:
    explicit writer(const std::string & path) : file(path, std::ios::binary | std::ios::app) {}

    void bytes(const void * data, size_t n) {
        file.write(static_cast<const char *>(data), n);
        n_bytes += n;
    }

    void number(uint64_t value) { bytes(&value, sizeof(value)); }

    size_t n_bytes = 0; // written

private:
    std::ofstream file;
};

class reader {
public:
    // n_bytes: how many bytes of the file were read, for the caller, too
    reader(const std::string & path, size_t & n_bytes)
        : file(path, std::ios::binary | std::ios::ate), n_bytes(n_bytes) {
        size = file ? (size_t) file.tellg() : 0;
        file.seekg(n_bytes);
    }

    bool at_end() const { return size <= n_bytes; }

    std::vector<uint8_t> bytes(size_t n) {
        std::vector<uint8_t> res(n <= size - n_bytes ? n : 0);
        if (res.size() < n || !file.read(reinterpret_cast<char *>(res.data()), n)) {
            throw std::runtime_error(
                "this file ends too early, or is damaged: what follows the slot's state is not all there");
        }
        n_bytes += n;
        return res;
    }

    uint64_t number() {
        uint64_t res;
        std::memcpy(&res, bytes(sizeof(res)).data(), sizeof(res));
        return res;
    }

    // what begins here; false, and nothing was read, if it is something else
    bool begins(uint64_t what) {
        if (at_end()) {
            return false;
        }
        if (number() == what) {
            return true;
        }
        n_bytes -= sizeof(what);
        file.seekg(n_bytes);
        return false;
    }

private:
    std::ifstream file;
    size_t        size;
    size_t &      n_bytes;
};

} // namespace

static void write_adapters(writer & file, const server_h2o_adapters & adapters) {
    const auto is_applied = [](const auto & adapter) { return adapter.scale != 0.0f; };

    const size_t n = std::count_if(adapters.begin(), adapters.end(), is_applied);
    if (n == 0) {
        return;
    }
    file.number(ADAPTERS);
    file.number(n);
    for (const auto & adapter : adapters) {
        if (is_applied(adapter)) {
            const double scale = adapter.scale;
            file.number(llama_h2o_adapter_hash(adapter.ptr));
            file.bytes(&scale, sizeof(scale));
        }
    }
}

size_t server_h2o_save_slot(llama_context * ctx, const std::string & path, llama_seq_id id,
        const server_h2o_adapters & adapters, const llama_token * tokens, size_t n_tokens) {
    const std::string unfinished = path + ".part";

    size_t n_bytes = llama_state_seq_save_file(ctx, unfinished.c_str(), id, tokens, n_tokens);
    if (n_bytes > 0) {
        writer file(unfinished);
        write_adapters(file, adapters);
        n_bytes += file.n_bytes;
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
    reader file(path, n_bytes);
    for (auto & adapter : adapters) {
        adapter.scale = 0.0f;
    }
    for (uint64_t n = file.begins(ADAPTERS) ? file.number() : 0; n > 0; --n) {
        const uint64_t hash = file.number();

        double scale;
        std::memcpy(&scale, file.bytes(sizeof(scale)).data(), sizeof(scale));

        const auto found = std::find_if(adapters.begin(), adapters.end(), [&](const auto & adapter) {
            return adapter.scale == 0.0f && llama_h2o_adapter_hash(adapter.ptr) == hash;
        });
        if (found == adapters.end()) {
            throw std::runtime_error("this slot was computed with a LoRA adapter that this server does not have");
        }
        found->scale = scale;
    }
}
