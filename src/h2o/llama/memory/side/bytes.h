#pragma once

#include "llama-io.h"

#include "ggml-backend.h"

#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

// llama.cpp's states as bytes in memory.

// FNV-1a; hash: of the bytes before these
inline uint64_t h2o_hash(const void * data, size_t n, uint64_t hash = 0xcbf29ce484222325) {
    for (size_t i = 0; i < n; ++i) {
        hash = (hash ^ ((const uint8_t *) data)[i])*0x100000001b3;
    }
    return hash;
}

class h2o_byte_writer : public llama_io_write_i {
public:
    // counts: only the number of bytes is right
    explicit h2o_byte_writer(bool counts = false) : counts(counts) {}

    void write(const void * src, size_t size) override {
        bytes.resize(bytes.size() + size);
        if (!counts && size > 0) {
            memcpy(bytes.data() + bytes.size() - size, src, size);
        }
    }

    void write_tensor(ggml_tensor * tensor, size_t offset, size_t size) override {
        bytes.resize(bytes.size() + size);
        if (!counts) {
            ggml_backend_tensor_get(tensor, bytes.data() + bytes.size() - size, offset, size);
        }
    }

    size_t n_bytes() override { return bytes.size(); }

    std::vector<uint8_t> bytes;

private:
    const bool counts;
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
