#include "h2o/store/row-mover.h"

#include "h2o/config/env.h"
#include "h2o/store/rows-graph.h"

#include <algorithm>
#include <stdexcept>

static constexpr size_t N_TENSORS = 5; // of a move

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

// Numbers of heads of rows, of all moves: one input, for each has to be copied to the device.
static std::vector<int32_t> numbers_of(const std::vector<const h2o_row_moves *> & moves) {
    std::vector<int32_t> res;
    for (const auto * m : moves) {
        const size_t n_head = m->rows.n_head;
        const size_t n      = m->from.size()/n_head;
        for (size_t i = 0; i < n; ++i) {
            for (size_t h = 0; h < n_head; ++h) {
                res.push_back(m->from[h*n + i]*n_head + h);
            }
        }
    }
    return res;
}

// False: the backend cannot. No operator can move heads that are not whole words, such as heads of 32 in Q4_0.
static bool add_move(h2o_rows_graph & graph, const h2o_row_moves & m, ggml_tensor * numbers, size_t first_number) {
    const auto & rows = m.rows;
    const size_t n    = m.from.size()/rows.n_head;

    if (rows.t->nb[1]%(rows.n_head*sizeof(int32_t)) != 0 || !graph.can_use(rows.t)) {
        return false;
    }
    ggml_tensor * idx    = ggml_view_1d(graph.get(), numbers, m.from.size(), first_number*numbers->nb[0]);
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
        h2o_rows_graph graph(backend, left.size()*N_TENSORS + 1);
        ggml_tensor *  numbers = graph.new_input(GGML_TYPE_I32, numbers_of(left));

        size_t end = 0; // of a move's numbers
        left.erase(std::remove_if(left.begin(), left.end(), [&](const auto * m) {
            end += m->from.size();
            return add_move(graph, *m, numbers, end - m->from.size());
        }), left.end());
        graph.compute(allocators[backend], "rows could not be moved");
    }

    for (const auto * m : left) {
        m->rows.move(m->first, m->from);
    }
}
