#include "server/slots.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ios>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

// A slot's file is llama.cpp's state of the sequence, MAGIC, the number of checkpoints and the checkpoints. A checkpoint is its number
// of tokens, the sizes of data_tgt (its state) and data_dft (its rows), and these two. Numbers are uint64_t.
static constexpr uint64_t MAGIC = 0x31706b63206f3268; // "h2o ckp1"

// returns the number of bytes written
static size_t append_checkpoints(const std::string & path, const std::list<common_prompt_checkpoint> & checkpoints) {
    std::ofstream file(path, std::ios::binary | std::ios::app);

    size_t n_bytes = 0;

    const auto write = [&](const void * data, size_t n) {
        file.write(static_cast<const char *>(data), n);
        n_bytes += n;
    };
    const auto write_number = [&](uint64_t number) { write(&number, sizeof(number)); };

    write_number(MAGIC);
    write_number(checkpoints.size());
    for (const auto & c : checkpoints) {
        write_number(c.n_tokens);
        write_number(c.data_tgt.size());
        write_number(c.data_dft.size());
        write(c.data_tgt.data(), c.data_tgt.size());
        write(c.data_dft.data(), c.data_dft.size());
    }
    return n_bytes;
}

size_t server_h2o_save_slot(llama_context * ctx, const char * path, llama_seq_id id, const std::list<common_prompt_checkpoint> & checkpoints,
        const llama_token * tokens, size_t n_tokens) {
    const std::string unfinished = std::string(path) + ".part";

    size_t n_bytes = llama_state_seq_save_file(ctx, unfinished.c_str(), id, tokens, n_tokens);
    if (n_bytes > 0 && server_h2o_enabled(ctx)) {
        n_bytes += append_checkpoints(unfinished, checkpoints);
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

std::list<common_prompt_checkpoint> server_h2o_load_checkpoints(const llama_context * ctx, const std::string & path, int32_t n_tokens, size_t & n_bytes) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);

    const size_t size = file ? (size_t) file.tellg() : 0;
    if (size <= n_bytes || !server_h2o_enabled(ctx)) { // H2O was off when it was saved, or is now
        return {};
    }
    file.seekg(n_bytes);

    const auto read = [&](size_t n) {
        std::vector<uint8_t> bytes(n <= size - n_bytes ? n : 0);
        if (bytes.size() < n || !file.read(reinterpret_cast<char *>(bytes.data()), n)) {
            throw std::runtime_error("this file ends too early, or is damaged: its checkpoints are not all there");
        }
        n_bytes += n;
        return bytes;
    };
    const auto read_number = [&] {
        uint64_t number;
        std::memcpy(&number, read(sizeof(number)).data(), sizeof(number));
        return number;
    };

    if (read_number() != MAGIC) {
        throw std::runtime_error("the slot's state in this file is not followed by checkpoints");
    }
    std::list<common_prompt_checkpoint> res;
    for (uint64_t n = read_number(), last = 1; n > 0; --n) {
        const uint64_t n_checkpoint = read_number();
        if (n_checkpoint < last || n_checkpoint > (uint64_t) n_tokens) {
            throw std::runtime_error("a checkpoint in this file is of " + std::to_string(n_checkpoint) + " tokens, expected " +
                std::to_string(last) + " to " + std::to_string(n_tokens));
        }
        const uint64_t n_state = read_number(), n_rows = read_number();

        auto & c = res.emplace_back();
        c.update_pos(n_checkpoint, 0, n_checkpoint - 1);
        c.data_tgt = read(n_state);
        c.data_dft = read(n_rows);
        last       = n_checkpoint;
    }
    return res;
}
