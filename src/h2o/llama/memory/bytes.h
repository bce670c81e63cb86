#pragma once

// llama.cpp's states as bytes in memory.

#include "h2o/llama/memory/state/text-state.h"

#include "llama-io.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

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

// A writer to dst. It copies all but tensors, which can be copied later, and notes which bytes are rows. Without dst it only
// counts and notes.
class h2o_byte_writer : public llama_io_write_i, public h2o_state_copy {
public:
    // n_tokens: of the sequence; 0: no rows are noted
    explicit h2o_byte_writer(uint32_t n_tokens, uint8_t * dst = nullptr, size_t size = 0)
        : n_tokens(n_tokens), dst(dst), size(size) {}

    // NULL if this is something else
    static h2o_byte_writer * of(llama_io_write_i & io) { return dynamic_cast<h2o_byte_writer *>(&io); }

    void write(const void * src, size_t n) override {
        if (uint8_t * to = place(n)) {
            memcpy(to, src, n);
        }
    }

    // The rows of any cache: as many as there are tokens. Other tensors are not noted.
    void write_tensor(ggml_tensor * tensor, size_t offset, size_t n) override {
        if (n_tokens > 0 && n % n_tokens == 0) {
            add(n_written, 0, n_tokens, n);
        }
        if (uint8_t * to = place(n)) {
            tensors.push_back({ tensor, offset, n, to });
        }
    }

    size_t n_bytes() override { return n_written; }

    bool is_counting() const override { return !dst; }

    // these bytes, which have been or will be written, are the rows of the positions [first, first + n)
    void add(size_t offset, uint32_t first, uint32_t n, size_t size) {
        if (size > 0) {
            rows.push_back({ offset, first, n, size/n });
        }
    }

    std::vector<h2o_rows> rows;

    bool next(size_t n) override {
        while (n > 0 && !tensors.empty()) {
            auto & [tensor, offset, size, dst] = tensors.back();
            const size_t n_now = std::min(n, size);
            ggml_backend_tensor_get(tensor, dst + size - n_now, offset + size - n_now, n_now);
            n    -= n_now;
            size -= n_now;
            if (size == 0) {
                tensors.pop_back();
            }
        }
        return !tensors.empty();
    }

private:
    struct part {
        ggml_tensor * tensor;
        size_t        offset;
        size_t        size;
        uint8_t *     dst;
    };

    std::vector<part> tensors;

    // where the next n bytes go; NULL if nothing is copied
    uint8_t * place(size_t n) {
        if (dst && n > size - n_written) {
            throw std::runtime_error("a state does not fit into its buffer");
        }
        n_written += n;
        return dst ? dst + n_written - n : nullptr;
    }

    const uint32_t  n_tokens;
    uint8_t * const dst;
    const size_t    size;

    size_t n_written = 0;
};

// write() writes rows of the positions [first, first + n), of `size` bytes, to io. It is called only if io needs them.
template <typename F>
void h2o_write_rows(llama_io_write_i & io, uint32_t first, uint32_t n, size_t size, const F & write) {
    if (auto * notes = h2o_byte_writer::of(io)) {
        notes->add(io.n_bytes(), first, n, size);
    }
    if (io.is_counting()) {
        io.write(nullptr, size);
    } else {
        write();
    }
}

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
