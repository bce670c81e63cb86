#pragma once

#include "h2o/store/buffers.h"
#include "h2o/store/kv-rows.h"

#include <cstdint>
#include <optional>
#include <vector>

// Ranges of rows in the cache, and copies of them.
class h2o_row_copies {
public:
    struct range {
        ggml_tensor * t; // of the cache
        size_t        first;
        size_t        n;
        uint32_t      pos; // of its first row; rows of a memory set count as the positions before the chunk
        ggml_tensor * copy;

        size_t offset () const { return first*t->nb[1]; }
        size_t n_bytes() const { return n*t->nb[1]; }
    };

    // rows [first, first + n)
    void add(const h2o_kv_rows & rows, uint32_t first, uint32_t n, uint32_t pos);

    const std::vector<range> & ranges() const { return all; }

    // Copies the rows, on their device if it has memory, else on the host. Throws std::runtime_error if neither has.
    void save(bool on_devices = true);

    // has another sequence's copies of the same rows, for as long as these are there
    void borrow(const h2o_row_copies & other);

    // Allocates copies for the caller to fill, on the host or where the rows are. Throws std::runtime_error.
    void allocate(bool on_devices = false);

    // allocates them on the host, and fills them: f(dst, n_bytes)
    template <typename F>
    void read(const F & f) {
        allocate();
        for (const auto & r : all) {
            f(r.copy->data, r.n_bytes());
        }
    }

    // writes the copies to the rows
    void restore() const;

    uint32_t end = 0; // the position after the last row's

private:
    std::vector<range> all;

    std::optional<h2o_buffers> buffers; // of the copies
};
