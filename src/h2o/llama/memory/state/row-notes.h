#pragma once

#include "h2o/llama/memory/state/text-state.h"

#include "ggml-backend.h"
#include "llama-io.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

// A writer that copies nothing and notes which bytes of a state are rows: see h2o_state_rows().
class h2o_row_notes : public llama_io_write_i {
public:
    // n_bytes: bytes before the state; n_tokens: of the sequence
    h2o_row_notes(size_t n_bytes, uint32_t n_tokens) : n_written(n_bytes), n_tokens(n_tokens) {}

    // NULL if this is something else
    static h2o_row_notes * of(llama_io_write_i & io) { return dynamic_cast<h2o_row_notes *>(&io); }

    void write(const void * /*src*/, size_t size) override { n_written += size; }

    // The rows of any cache: as many as there are tokens. Other tensors are not noted.
    void write_tensor(ggml_tensor * /*tensor*/, size_t /*offset*/, size_t size) override {
        if (n_tokens > 0 && size % n_tokens == 0) {
            add(n_written, 0, n_tokens, size);
        }
        n_written += size;
    }

    size_t n_bytes() override { return n_written; }

    bool is_counting() const override { return true; }

    // these bytes, which have been or will be written, are the rows of the positions [first, first + n)
    void add(size_t offset, uint32_t first, uint32_t n, size_t size) {
        if (size > 0) {
            noted.push_back({ offset, first, n, size/n });
        }
    }

    const std::vector<h2o_rows> & rows() const { return noted; }

private:
    size_t         n_written;
    const uint32_t n_tokens;

    std::vector<h2o_rows> noted;
};

// A writer that copies all but tensors, which can be copied later.
struct h2o_copied_state : h2o_row_notes, h2o_state_copy {
    h2o_copied_state(uint8_t * dst, size_t size, uint32_t n_tokens) : h2o_row_notes(0, n_tokens), dst(dst), size(size) {}

    void write(const void * src, size_t n) override {
        memcpy(place(n), src, n);
        h2o_row_notes::write(src, n);
    }

    void write_tensor(ggml_tensor * tensor, size_t offset, size_t n) override {
        tensors.push_back({ tensor, offset, n, place(n) });
        h2o_row_notes::write_tensor(tensor, offset, n);
    }

    bool is_counting() const override { return false; }

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

    uint8_t * place(size_t n) {
        if (n > size - n_bytes()) {
            throw std::runtime_error("a state does not fit into its buffer");
        }
        return dst + n_bytes();
    }

    uint8_t * const dst;
    const size_t    size;
};

// write() writes rows of the positions [first, first + n), of `size` bytes, to io. It is called only if io needs them.
template <typename F>
void h2o_write_rows(llama_io_write_i & io, uint32_t first, uint32_t n, size_t size, const F & write) {
    if (auto * notes = h2o_row_notes::of(io)) {
        notes->add(io.n_bytes(), first, n, size);
    }
    if (io.is_counting()) {
        io.write(nullptr, size);
    } else {
        write();
    }
}
