#include "h2o/store/row-copies.h"

#include "h2o/config/refusal.h"
#include "h2o/store/buffers.h"

#include "ggml-backend.h"

#include <new>
#include <set>
#include <stdexcept>

void h2o_row_copies::add(const h2o_kv_rows & rows, uint32_t first, uint32_t n, uint32_t pos) {
    if (n > 0) {
        all.push_back({ rows.t, rows.row0 + first, n, pos, nullptr });
    }
}

bool h2o_row_copies::allocate(ggml_backend_buffer_type_t from, ggml_backend_buffer_type_t to) {
    ggml_context_ptr ctx { ggml_init({ all.size()*ggml_tensor_overhead(), nullptr, true }) };
    if (!ctx) {
        throw std::bad_alloc();
    }
    for (auto & r : all) {
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

void h2o_row_copies::allocate(bool on_devices) {
    std::set<ggml_backend_buffer_type_t> types;
    for (const auto & r : all) {
        types.insert(ggml_backend_buffer_get_type(r.t->buffer));
    }
    for (auto * type : types) {
        if (!(on_devices && allocate(type, type)) && !allocate(type, ggml_backend_cpu_buffer_type())) {
            throw h2o_refusal(h2o_reason::MEMORY, "[h2o] not enough memory for a copy of the rows that move");
        }
    }
}

void h2o_row_copies::save() {
    allocate(/*on_devices =*/ true);
    for (const auto & r : all) {
        h2o_copy_rows(r.t, r.first, r.copy, 0, r.n);
    }
}

void h2o_row_copies::restore() const {
    for (const auto & r : all) {
        h2o_copy_rows(r.copy, 0, r.t, r.first, r.n);
    }
}
