#include "h2o/store/row-mover.h"

#include "h2o/config/env.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

static constexpr size_t N_TENSORS = 9; // of a layer

// Rows [r0, r1), one for each head, as words: so every type moves as it is.
static ggml_tensor * words_of(ggml_context * ctx, const h2o_kv_rows & rows, uint32_t r0, uint32_t r1) {
    const ggml_tensor * t = rows.t;

    ggml_tensor * res = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, t->nb[1]/rows.n_head/sizeof(int32_t), (int64_t) (r1 - r0)*rows.n_head);
    if (ggml_backend_tensor_alloc(t->buffer, res, (char *) t->data + (rows.row0 + r0)*t->nb[1]) != GGML_STATUS_SUCCESS) {
        throw std::runtime_error("[h2o] rows could not be moved: no view of the cache");
    }
    return res;
}

namespace {

// of the layers whose rows one backend moves
struct graph {
    graph(ggml_backend_t backend, size_t n_max) : backend(backend),
        ctx(ggml_init({ n_max*N_TENSORS*ggml_tensor_overhead() + ggml_graph_overhead_custom(n_max*N_TENSORS, false), nullptr, true })) {
        if (!ctx) {
            throw std::bad_alloc();
        }
        gf = ggml_new_graph_custom(ctx.get(), n_max*N_TENSORS, false);
    }

    // False: the backend cannot. Heads that are no whole number of words, as of 32 in Q4_0, can be moved as they are by no operator.
    bool add(const h2o_row_moves & m) {
        const size_t n = m.from.size()/m.tensors[0].n_head;

        ggml_tensor * idx = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, m.from.size());
        ggml_set_input(idx);

        std::vector<ggml_tensor *> nodes;
        for (const auto & rows : m.tensors) {
            if (rows.t->nb[1]%(rows.n_head*sizeof(int32_t)) != 0 || !ggml_backend_supports_buft(backend, ggml_backend_buffer_get_type(rows.t->buffer))) {
                return false;
            }
            ggml_tensor * all    = words_of(ctx.get(), rows, 0, *std::max_element(m.from.begin(), m.from.end()) + 1);
            ggml_tensor * chosen = ggml_get_rows(ctx.get(), all, idx);
            ggml_tensor * moved  = ggml_cpy(ctx.get(), chosen, words_of(ctx.get(), rows, m.first, m.first + n));
            if (!ggml_backend_supports_op(backend, chosen) || !ggml_backend_supports_op(backend, moved)) {
                return false;
            }
            nodes.push_back(moved);
        }

        for (ggml_tensor * node : nodes) {
            ggml_build_forward_expand(gf, node);
        }

        auto & numbers = inputs.emplace_back(idx, std::vector<int32_t>()).second;
        for (size_t i = 0; i < n; ++i) {
            for (size_t h = 0; h < m.tensors[0].n_head; ++h) {
                numbers.push_back(m.from[h*n + i]*m.tensors[0].n_head + h);
            }
        }
        return true;
    }

    void compute(ggml_gallocr_ptr & allocator) {
        auto * buft = ggml_backend_get_default_buffer_type(backend);
        if (!allocator) {
            allocator.reset(ggml_gallocr_new(buft));
        }
        if (!ggml_gallocr_alloc_graph(allocator.get(), gf)) {
            allocator.reset(); // it would not try again
            throw std::runtime_error(std::string("[h2o] not enough memory to move rows: ") + ggml_backend_buft_name(buft));
        }
        for (const auto & [idx, numbers] : inputs) {
            ggml_backend_tensor_set(idx, numbers.data(), 0, ggml_nbytes(idx));
        }
        if (ggml_backend_graph_compute(backend, gf) != GGML_STATUS_SUCCESS) {
            throw std::runtime_error(std::string("[h2o] rows could not be moved: ") + ggml_backend_name(backend));
        }
    }

    const ggml_backend_t backend;

    ggml_context_ptr ctx;
    ggml_cgraph *    gf;

    std::vector<std::pair<ggml_tensor *, std::vector<int32_t>>> inputs;
};

} // namespace

h2o_row_mover::h2o_row_mover() : is_on_device(h2o_env("H2O_NO_FUSED_ATTENTION")) {}

void h2o_row_mover::move(const std::vector<ggml_backend_t> & backends, const std::vector<h2o_row_moves> & moves) {
    std::vector<const h2o_row_moves *> left; // of those that a device is to move
    for (const auto & m : moves) {
        if (is_on_device || !ggml_backend_buffer_is_host(m.tensors[0].t->buffer)) {
            left.push_back(&m);
        } else {
            for (const auto & rows : m.tensors) {
                rows.move(m.first, m.from);
            }
        }
    }

    for (const auto & backend : backends) {
        if (left.empty()) {
            return;
        }
        graph g(backend, left.size());
        left.erase(std::remove_if(left.begin(), left.end(), [&](const auto * m) { return g.add(*m); }), left.end());
        if (!g.inputs.empty()) {
            g.compute(allocators[backend]);
        }
    }

    for (const auto * m : left) {
        for (const auto & rows : m->tensors) {
            rows.move(m->first, m->from);
        }
    }
}
