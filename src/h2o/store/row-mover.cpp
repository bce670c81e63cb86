#include "h2o/store/row-mover.h"

#include "h2o/config/env.h"
#include "h2o/config/refusal.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace {

constexpr size_t N_TENSORS = 20; // of a move or a rotation, at most

// What one backend does to rows of some layers between two calls.
class rows_graph {
public:
    rows_graph(ggml_backend_t backend, size_t n_tensors_max) : backend(backend),
        ctx(ggml_init({ n_tensors_max*ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors_max, false),
                nullptr, true })) {
        if (!ctx) {
            throw std::bad_alloc();
        }
        gf = ggml_new_graph_custom(ctx.get(), n_tensors_max, false);
    }

    ggml_context * get() const { return ctx.get(); }

    // rows of a tensor of the cache are where the backend can use them
    bool can_use(const ggml_tensor * t) const {
        return ggml_backend_supports_buft(backend, ggml_backend_buffer_get_type(t->buffer));
    }

    // Adds these nodes; false: the backend cannot compute them.
    bool add(const std::vector<ggml_tensor *> & nodes) {
        const bool ok = std::all_of(nodes.begin(), nodes.end(),
                [&](const ggml_tensor * node) { return ggml_backend_supports_op(backend, node); });
        for (ggml_tensor * node : ok ? nodes : std::vector<ggml_tensor *>()) {
            ggml_build_forward_expand(gf, node);
        }
        return ok;
    }

    template <typename T>
    ggml_tensor * new_input(ggml_type type, const std::vector<T> & values, int64_t ne1 = 1) {
        const auto * bytes = (const uint8_t *) values.data();
        inputs.push_back({ ggml_new_tensor_2d(ctx.get(), type, values.size()/ne1, ne1),
                { bytes, bytes + values.size()*sizeof(T) } });
        ggml_set_input(inputs.back().first);
        return inputs.back().first;
    }

    // NULL: none
    ggml_tensor * hadamard(uint32_t n) {
        ggml_tensor *& res = hadamards[n];
        if (n > 0 && !res) {
            res = new_input(GGML_TYPE_F32, h2o_hadamard(n), n);
        }
        return res;
    }

    // begins to compute the nodes that were added
    void compute(ggml_gallocr_ptr & allocator, const char * what);

    const ggml_backend_t backend;

private:
    ggml_context_ptr ctx;
    ggml_cgraph *    gf;

    std::vector<std::pair<ggml_tensor *, std::vector<uint8_t>>> inputs; // and their values
    std::map<uint32_t, ggml_tensor *> hadamards;                        // by size
};

void rows_graph::compute(ggml_gallocr_ptr & allocator, const char * what) {
    if (ggml_graph_n_nodes(gf) == 0) {
        return;
    }
    auto * buft = ggml_backend_get_default_buffer_type(backend);
    if (!allocator) {
        allocator.reset(ggml_gallocr_new(buft));
    }
    // Without a reservation the allocator keeps the previous graph's layout when the number of tensors is the same and
    // none is larger. Here other tensors may use an input, so its place may be taken.
    if (!ggml_gallocr_reserve(allocator.get(), gf) || !ggml_gallocr_alloc_graph(allocator.get(), gf)) {
        allocator.reset(); // it would not try again
        throw h2o_refusal(h2o_reason::MEMORY, std::string("[h2o] not enough memory: ") + what + ": " +
                ggml_backend_buft_name(buft));
    }
    for (const auto & [input, bytes] : inputs) {
        if (input->buffer) { // else nothing that was added uses it
            ggml_backend_tensor_set(input, bytes.data(), 0, bytes.size());
        }
    }
    if (ggml_backend_graph_compute_async(backend, gf) != GGML_STATUS_SUCCESS) {
        throw std::runtime_error(std::string("[h2o] ") + what + ": " + ggml_backend_name(backend) + " failed");
    }
}

// One graph of each backend, with the items that it can compute: add(graph, item) adds one. Returns what none can.
template <typename T, typename Add, typename Compute>
std::vector<T> for_backends(const std::vector<ggml_backend_t> & backends, std::vector<T> left, const Add & add,
        const Compute & compute) {
    for (auto * backend : backends) {
        if (left.empty()) {
            break;
        }
        rows_graph graph(backend, (left.size() + 1)*N_TENSORS);
        left.erase(std::remove_if(left.begin(), left.end(), [&](const T & item) { return add(graph, item); }),
                left.end());
        compute(graph);
    }
    return left;
}

// Rows [r0, r1), one for each head, as words: every type moves unchanged.
ggml_tensor * words_of(ggml_context * ctx, const h2o_kv_rows & rows, uint32_t r0, uint32_t r1) {
    const ggml_tensor * t = rows.t;

    ggml_tensor * res = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, t->nb[1]/rows.n_head/sizeof(int32_t),
            (int64_t) (r1 - r0)*rows.n_head);
    if (ggml_backend_tensor_alloc(t->buffer, res,
            (char *) t->data + (rows.row0 + r0)*t->nb[1]) != GGML_STATUS_SUCCESS) {
        throw std::runtime_error("[h2o] rows could not be moved: no view of the cache");
    }
    return res;
}

// idx: rows of single heads. No operator can move heads that are not whole words, such as heads of 32 in Q4_0.
bool add_move(rows_graph & graph, const h2o_row_moves & m, ggml_tensor * idx) {
    const auto & rows = m.rows;
    const size_t n    = m.from.size()/rows.n_head;

    if (rows.t->nb[1]%(rows.n_head*sizeof(int32_t)) != 0 || !graph.can_use(rows.t)) {
        return false;
    }
    ggml_tensor * all    = words_of(graph.get(), rows, 0, *std::max_element(m.from.begin(), m.from.end()) + 1);
    ggml_tensor * chosen = ggml_get_rows(graph.get(), all, idx);
    ggml_tensor * moved  = ggml_cpy(graph.get(), chosen, words_of(graph.get(), rows, m.first, m.first + n));
    return graph.add({ chosen, moved });
}

// in float32, from the type of the cache and back to it
bool add_rotation(rows_graph & graph, const h2o_key_rotation & r) {
    ggml_tensor * mean = r.rows.mean;
    for (const ggml_tensor * t : { r.rows.t, r.rope.factors, mean }) {
        if (t && !graph.can_use(t)) {
            return false;
        }
    }
    ggml_context * ctx = graph.get();

    const int64_t n = r.shifts.size()/r.rows.n_head;

    ggml_tensor * shifts = graph.new_input(GGML_TYPE_I32, r.shifts);

    std::vector<ggml_tensor *> nodes; // but for views
    const auto node = [&](ggml_tensor * t) {
        nodes.push_back(t);
        return t;
    };
    const auto multiplied = [&](ggml_tensor * t, uint32_t size) { // is its own inverse
        return size > 0 ? node(ggml_mul_mat(ctx, graph.hadamard(size),
                ggml_reshape_2d(ctx, t, size, ggml_nelements(t)/size))) : t;
    };
    const auto view = [&](ggml_tensor * t, size_t first) {
        return ggml_view_2d(ctx, t, r.rows.t->ne[0], n, t->nb[1], first*t->nb[1]);
    };
    const auto write = [&](ggml_tensor * k, ggml_tensor * t, size_t first) {
        node(ggml_cpy(ctx, ggml_reshape_2d(ctx, k, r.rows.t->ne[0], n), view(t, first)));
    };

    ggml_tensor * k = node(ggml_cast(ctx, view(r.rows.t, r.rows.row0 + r.from), GGML_TYPE_F32));
    k = ggml_reshape_3d(ctx, multiplied(k, r.rows.n_rot), r.rows.n_embd, r.rows.n_head, n);
    k = mean ? node(ggml_add(ctx, k, mean)) : k;
    k = ggml_reshape_3d(ctx, k, r.rows.n_embd, 1, r.shifts.size());
    k = node(ggml_rope_ext(ctx, k, shifts, r.rope.factors, r.rows.n_embd, GGML_ROPE_TYPE_NORMAL, 0, 1.0f, 1.0f, 0.0f,
            1.0f, 0.0f, 0.0f));
    std::copy(r.rope.params.begin(), r.rope.params.end(), k->op_params);

    k = ggml_reshape_3d(ctx, k, r.rows.n_embd, r.rows.n_head, n);
    k = multiplied(mean ? node(ggml_sub(ctx, k, mean)) : k, r.rows.n_rot);
    write(k, r.rows.t, r.rows.row0 + r.to);
    if (r.index) {
        write(multiplied(k, r.index_rot), r.index, r.index_to);
    }
    return graph.add(nodes);
}

} // namespace

h2o_row_mover::h2o_row_mover() : is_on_device(h2o_env("H2O_NO_FUSED_ATTENTION")) {}

void h2o_row_mover::move(const std::vector<ggml_backend_t> & backends, const std::vector<h2o_row_moves> & moves) {
    struct device_moves {
        const h2o_row_moves * moves;
        size_t first_number;
    };
    std::vector<device_moves> left;
    std::vector<int32_t>      numbers; // heads of rows, of all: one input, for each has to be copied to the device
    for (const auto & m : moves) {
        if (!is_on_device && ggml_backend_buffer_is_host(m.rows.t->buffer)) {
            m.rows.move(m.first, m.from);
            continue;
        }
        left.push_back({ &m, numbers.size() });
        const size_t n_head = m.rows.n_head;
        const size_t n      = m.from.size()/n_head;
        for (size_t i = 0; i < n; ++i) {
            for (size_t h = 0; h < n_head; ++h) {
                numbers.push_back(m.from[h*n + i]*n_head + h);
            }
        }
    }

    ggml_tensor * input = nullptr; // of a graph
    left = for_backends(backends, left, [&](rows_graph & graph, const device_moves & m) {
        if (!input) {
            input = graph.new_input(GGML_TYPE_I32, numbers);
        }
        return add_move(graph, *m.moves, ggml_view_1d(graph.get(), input, m.moves->from.size(),
                m.first_number*input->nb[0]));
    }, [&](rows_graph & graph) {
        graph.compute(allocators[graph.backend], "rows could not be moved");
        input = nullptr;
    });
    for (const auto & m : left) {
        m.moves->rows.move(m.moves->first, m.moves->from);
    }
}

template <typename Compute>
static void rotate_by(const std::vector<ggml_backend_t> & backends, const std::vector<h2o_key_rotation> & rotations,
        const Compute & compute) {
    const auto left = for_backends(backends, rotations, add_rotation, compute);
    if (!left.empty()) {
        throw h2o_refusal(h2o_reason::POSITIONS,
                std::string("[h2o] keys that move must be rotated where they are: ") +
                ggml_backend_buft_name(ggml_backend_buffer_get_type(left[0].rows.t->buffer)) + " cannot rotate " +
                ggml_type_name(left[0].rows.t->type) + ". Use another type of K, or positions text");
    }
}

void h2o_row_mover::rotate(const std::vector<ggml_backend_t> & backends,
        const std::vector<h2o_key_rotation> & rotations) {
    rotate_by(backends, rotations, [&](rows_graph & graph) {
        graph.compute(allocators[graph.backend], "keys could not be rotated");
        ggml_backend_synchronize(graph.backend);
    });
}

void h2o_row_mover::check(const std::vector<ggml_backend_t> & backends,
        const std::vector<h2o_key_rotation> & rotations) {
    rotate_by(backends, rotations, [](rows_graph &) {});
}
