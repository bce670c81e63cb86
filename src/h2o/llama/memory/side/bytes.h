#pragma once

#include "llama-io.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

// llama.cpp's states as bytes in memory.

// Eight bytes at a time; hash: of the bytes before these
inline uint64_t h2o_hash(const void * data, size_t n, uint64_t hash = 0xcbf29ce484222325) {
    for (size_t i = 0; i < n; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, (const uint8_t *) data + i, std::min(n - i, sizeof(word)));
        hash = (hash ^ word)*0x9e3779b97f4a7c15;
        hash ^= hash >> 32;
    }
    return hash;
}

struct h2o_byte_counter : llama_io_write_i {
    void   write(const void * /*src*/, size_t size) override { n += size; }
    void   write_tensor(ggml_tensor * /*tensor*/, size_t /*offset*/, size_t size) override { n += size; }
    size_t n_bytes() override { return n; }

    size_t n = 0;
};

struct h2o_byte_writer : llama_io_write_i {
    explicit h2o_byte_writer(size_t n_bytes) { bytes.reserve(n_bytes); }

    void write(const void * src, size_t size) override {
        bytes.insert(bytes.end(), (const uint8_t *) src, (const uint8_t *) src + size);
    }

    void write_tensor(ggml_tensor * tensor, size_t offset, size_t size) override {
        bytes.resize(bytes.size() + size);
        ggml_backend_tensor_get(tensor, bytes.data() + bytes.size() - size, offset, size);
    }

    size_t n_bytes() override { return bytes.size(); }

    std::vector<uint8_t> bytes;
};

class h2o_byte_reader : public llama_io_read_i {
public:
    explicit h2o_byte_reader(const std::vector<uint8_t> & bytes) : bytes(bytes) {}

    void read(void * dst, size_t size) override { memcpy(dst, next(size), size); }

    void read_tensor(ggml_tensor * tensor, size_t offset,
            size_t size) override { ggml_backend_tensor_set(tensor, next(size), offset, size); }

    size_t n_bytes() override { return n_read; }

private:
    const uint8_t * next(size_t size) {
        if (size > bytes.size() - n_read) {
            throw std::runtime_error("[h2o] this state is damaged");
        }
        return bytes.data() + std::exchange(n_read, n_read + size);
    }

    const std::vector<uint8_t> & bytes;

    size_t n_read = 0;
};
