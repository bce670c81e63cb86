#include "h2o/store/buffers.h"

#include "h2o/config/refusal.h"

#include "ggml-backend.h"

#include <new>
#include <utility>

ggml_tensor * h2o_buffers::add(ggml_backend_buffer_type_t buft, const std::string & name, ggml_type type, int64_t ne0,
        int64_t ne1) {
    auto & ctx = ctxs[buft];
    if (!ctx) {
        ggml_init_params params = {
            /*.mem_size   =*/ n_tensors_max*ggml_tensor_overhead(),
            /*.mem_buffer =*/ nullptr,
            /*.no_alloc   =*/ true,
        };
        ctx.reset(ggml_init(params));
        if (!ctx) {
            throw std::bad_alloc();
        }
    }

    return ggml_set_name(ggml_new_tensor_2d(ctx.get(), type, ne0, ne1), name.c_str());
}

void h2o_buffers::allocate(const char * what, bool or_on_host) {
    for (auto & [buft, ctx] : ctxs) {
        ggml_backend_buffer_ptr buffer { ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft) };
        if (!buffer && or_on_host) {
            buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_cpu_buffer_type()));
        }
        if (!buffer) {
            throw h2o_refusal(h2o_reason::MEMORY, std::string("[h2o] not enough memory for ") + what);
        }
        buffers.push_back(std::move(buffer));
    }
}

std::map<ggml_backend_buffer_type_t, size_t> h2o_buffers::sizes() const {
    std::map<ggml_backend_buffer_type_t, size_t> res;
    for (const auto & buffer : buffers) {
        res[ggml_backend_buffer_get_type(buffer.get())] += ggml_backend_buffer_get_size(buffer.get());
    }
    return res;
}

void h2o_copy_rows(ggml_tensor * src, size_t from, ggml_tensor * dst, size_t to, size_t n) {
    ggml_init_params params = { 2*ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    const auto rows = [&](ggml_tensor * t, size_t i) {
        ggml_tensor * res = ggml_view_2d(ctx.get(), t, t->ne[0], n, t->nb[1], i*t->nb[1]);
        ggml_backend_view_init(res);
        return res;
    };
    ggml_backend_tensor_copy(rows(src, from), rows(dst, to));
}
