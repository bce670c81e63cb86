#pragma once

#include "h2o/store/kv-rows.h"

#include "ggml-cpp.h"

#include <cstdint>
#include <vector>

// Rows of the cache as they were, kept on their device.
class h2o_row_copies {
public:
    // rows [first, first + n), to be copied by save()
    void add(const h2o_kv_rows & rows, uint32_t first, uint32_t n);

    // Copies go to the host where their device has no room. Throws std::runtime_error if the host has none either.
    void save();

    // the rows become what they were
    void restore() const;

private:
    struct range {
        ggml_tensor * t; // of the cache
        size_t        first;
        size_t        n;
        ggml_tensor * copy;
    };

    // of the ranges whose rows are in one type of buffers; false: there is no room in buffers of type `to`
    bool allocate(ggml_backend_buffer_type_t from, ggml_backend_buffer_type_t to);

    std::vector<range> ranges;

    std::vector<ggml_context_ptr>        ctxs;
    std::vector<ggml_backend_buffer_ptr> buffers;
};
