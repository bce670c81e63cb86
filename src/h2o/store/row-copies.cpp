#include "h2o/store/row-copies.h"

#include "h2o/config/refusal.h"
#include "h2o/store/buffers.h"

#include "ggml-backend.h"

#include <new>
#include <set>
#include <stdexcept>

void h2o_row_copies::add(const h2o_kv_rows & rows, uint32_t first, uint32_t n) {
    if (n > 0) {
        ranges.push_back({ rows.t, rows.row0 + first, n, nullptr });
    }
}

bool h2o_row_copies::allocate(ggml_backend_buffer_type_t from, ggml_backend_buffer_type_t to) {
    ggml_context_ptr ctx { ggml_init({ ranges.size()*ggml_tensor_overhead(), nullptr, true }) };
    if (!ctx) {
        throw std::bad_alloc();
    }
    for (auto & r : ranges) {
        if (ggml_backend_buffer_get_type(r.t->buffer) == from) {
            r.copy = ggml_new_tensor_2d(ctx.get(), r.t->type, r.t->ne[0], r.n);
        }
    }
    ggml_backend_buffer_ptr buffer { ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), to) };
    if (!buffer) {
        return false;
    }
    ctxs.push_back(std::move(ctx));
    buffers.push_back(std::move(buffer));
    return true;
}

void h2o_row_copies::save() {
    std::set<ggml_backend_buffer_type_t> types;
    for (const auto & r : ranges) {
        types.insert(ggml_backend_buffer_get_type(r.t->buffer));
    }
    for (auto * type : types) {
        if (!allocate(type, type) && !allocate(type, ggml_backend_cpu_buffer_type())) {
            throw h2o_refusal(h2o_reason::MEMORY, "[h2o] not enough memory to keep the rows that a call moves");
        }
    }
    for (const auto & r : ranges) {
        h2o_copy_rows(r.t, r.first, r.copy, 0, r.n);
    }
}

void h2o_row_copies::restore() const {
    for (const auto & r : ranges) {
        h2o_copy_rows(r.copy, 0, r.t, r.first, r.n);
    }
}
