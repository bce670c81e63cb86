#include "h2o/store/row-mover.h"

#include "h2o/config/env.h"
#include "h2o/store/rows-graph.h"

#include <algorithm>
#include <stdexcept>

static constexpr size_t N_TENSORS = 5; // of rows that move

// Rows [r0, r1), one for each head, as words: every type moves unchanged.
static ggml_tensor * words_of(ggml_context * ctx, const h2o_kv_rows & rows, uint32_t r0, uint32_t r1) {
    const ggml_tensor * t = rows.t;

    ggml_tensor * res = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, t->nb[1]/rows.n_head/sizeof(int32_t),
            (int64_t) (r1 - r0)*rows.n_head);
    if (ggml_backend_tensor_alloc(t->buffer, res,
            (char *) t->data + (rows.row0 + r0)*t->nb[1]) != GGML_STATUS_SUCCESS) {
        throw std::runtime_error("[h2o] rows could not be moved: no view of the cache");
    }
    return res;
}

// False: the backend cannot. No operator can move heads that are not whole words, such as heads of 32 in Q4_0.
static bool add_moves(h2o_rows_graph & graph, const h2o_row_moves & m) {
    const auto & rows = m.rows;
    const size_t n    = m.from.size()/rows.n_head;

    if (rows.t->nb[1]%(rows.n_head*sizeof(int32_t)) != 0 || !graph.can_use(rows.t)) {
        return false;
    }
    std::vector<int32_t> numbers;
    for (size_t i = 0; i < n; ++i) {
        for (size_t h = 0; h < rows.n_head; ++h) {
            numbers.push_back(m.from[h*n + i]*rows.n_head + h);
        }
    }
    ggml_tensor * idx    = graph.new_input(GGML_TYPE_I32, numbers);
    ggml_tensor * all    = words_of(graph.get(), rows, 0, *std::max_element(m.from.begin(), m.from.end()) + 1);
    ggml_tensor * chosen = ggml_get_rows(graph.get(), all, idx);
    ggml_tensor * moved  = ggml_cpy(graph.get(), chosen, words_of(graph.get(), rows, m.first, m.first + n));
    if (!graph.can_compute({ chosen, moved })) {
        return false;
    }
    graph.add(moved);
    return true;
}

h2o_row_mover::h2o_row_mover() : is_on_device(h2o_env("H2O_NO_FUSED_ATTENTION")) {}

void h2o_row_mover::move(const std::vector<ggml_backend_t> & backends, const std::vector<h2o_row_moves> & moves) {
    std::vector<const h2o_row_moves *> left; // moves for a device
    for (const auto & m : moves) {
        if (is_on_device || !ggml_backend_buffer_is_host(m.rows.t->buffer)) {
            left.push_back(&m);
        } else {
            m.rows.move(m.first, m.from);
        }
    }

    for (const auto & backend : backends) {
        if (left.empty()) {
            return;
        }
        h2o_rows_graph graph(backend, left.size()*N_TENSORS);
        left.erase(std::remove_if(left.begin(), left.end(), [&](const auto * m) { return add_moves(graph, *m); }),
                left.end());
        graph.compute(allocators[backend], "rows could not be moved");
    }

    for (const auto * m : left) {
        m->rows.move(m->first, m->from);
    }
}
