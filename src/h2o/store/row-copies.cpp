#include "h2o/store/row-copies.h"

#include "ggml-backend.h"

void h2o_row_copies::add(const h2o_kv_rows & rows, uint32_t first, uint32_t n, uint32_t pos) {
    if (n > 0) {
        all.push_back({ rows.t, rows.row0 + first, n, pos, nullptr });
    }
}

void h2o_row_copies::allocate(bool on_devices) {
    buffers.emplace(all.size());
    for (auto & r : all) {
        auto * type = on_devices ? ggml_backend_buffer_get_type(r.t->buffer) : ggml_backend_cpu_buffer_type();
        r.copy = buffers->add(type, "", r.t->type, r.t->ne[0], r.n);
    }
    buffers->allocate("a copy of the rows that move", /*or_on_host =*/ true);
}

void h2o_row_copies::save(bool on_devices) {
    allocate(on_devices);
    for (const auto & r : all) {
        h2o_copy_rows(r.t, r.first, r.copy, 0, r.n);
    }
}

void h2o_row_copies::borrow(const h2o_row_copies & other) {
    for (size_t i = 0; i < all.size(); ++i) {
        all[i].copy = other.all[i].copy;
    }
}

void h2o_row_copies::restore() const {
    for (const auto & r : all) {
        h2o_copy_rows(r.copy, 0, r.t, r.first, r.n);
    }
}
