#pragma once

#include "ggml-cpp.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// Tensors without a graph, each in a buffer of its type.
class h2o_buffers {
public:
    explicit h2o_buffers(size_t n_tensors_max) : n_tensors_max(n_tensors_max) {}

    // F32, I32, ... [ne0, ne1], without memory before allocate()
    ggml_tensor * add(ggml_backend_buffer_type_t buft, const std::string & name, ggml_type type, int64_t ne0,
            int64_t ne1);

    // throws h2o_refusal, which names `what`, if there is not enough memory there, nor on the host if that will do
    void allocate(const char * what, bool or_on_host = false);

    // bytes by where they are
    std::map<ggml_backend_buffer_type_t, size_t> sizes() const;

private:
    size_t n_tensors_max;

    std::map<ggml_backend_buffer_type_t, ggml_context_ptr> ctxs;
    std::vector<ggml_backend_buffer_ptr> buffers;
};

// Copies src's rows [from, from + n) to dst's rows from `to` on, through the host only between different devices.
void h2o_copy_rows(ggml_tensor * src, size_t from, ggml_tensor * dst, size_t to, size_t n);
