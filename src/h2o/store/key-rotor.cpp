#include "h2o/store/key-rotor.h"

#include "h2o/config/refusal.h"
#include "h2o/store/rows-graph.h"

#include <algorithm>
#include <stdexcept>
#include <string>

static constexpr size_t N_TENSORS = 16; // of a layer

static ggml_tensor * view_of(ggml_context * ctx, const h2o_kv_rows & rows, uint32_t first, int64_t n) {
    return ggml_view_2d(ctx, rows.t, rows.t->ne[0], n, rows.t->nb[1], (rows.row0 + first)*rows.t->nb[1]);
}

// In float32, from the type of the cache and back to it; false: the backend cannot. hadamards: the graph's, by size
static bool add_rotation(h2o_rows_graph & graph, std::map<uint32_t, ggml_tensor *> & hadamards,
        const h2o_key_rotation & r) {
    if (!graph.can_use(r.rows.t) || (r.rope.factors && !graph.can_use(r.rope.factors))) {
        return false;
    }
    ggml_context * ctx = graph.get();

    const int64_t n = r.shifts.size()/r.rows.n_head;

    ggml_tensor *  shifts   = graph.new_input(GGML_TYPE_I32, r.shifts);
    ggml_tensor *& hadamard = hadamards[r.rows.n_rot];
    if (r.rows.n_rot > 0 && !hadamard) {
        hadamard = graph.new_input(GGML_TYPE_F32, h2o_hadamard(r.rows.n_rot), r.rows.n_rot);
    }

    std::vector<ggml_tensor *> nodes;
    const auto node = [&](ggml_tensor * t) {
        nodes.push_back(t);
        return t;
    };
    const auto multiplied = [&](ggml_tensor * t) { // is its own inverse
        return hadamard ? node(ggml_mul_mat(ctx, hadamard,
                ggml_reshape_2d(ctx, t, r.rows.n_rot, ggml_nelements(t)/r.rows.n_rot))) : t;
    };

    ggml_tensor * k = node(ggml_cast(ctx, view_of(ctx, r.rows, r.from, n), GGML_TYPE_F32));

    k = ggml_reshape_3d(ctx, multiplied(k), r.rows.n_embd, 1, r.shifts.size());
    k = node(ggml_rope_ext(ctx, k, shifts, r.rope.factors, r.rows.n_embd, GGML_ROPE_TYPE_NORMAL, 0, 1.0f, 1.0f, 0.0f,
            1.0f, 0.0f, 0.0f));
    std::copy(r.rope.params.begin(), r.rope.params.end(), k->op_params);

    k = ggml_reshape_2d(ctx, multiplied(k), r.rows.t->ne[0], n);
    k = node(ggml_cpy(ctx, k, view_of(ctx, r.rows, r.to, n)));

    if (!graph.can_compute(nodes)) {
        return false;
    }
    graph.add(k);
    return true;
}

// f(graph of the rotations that a backend can compute, backend)
template <typename F>
static void for_backends(const std::vector<ggml_backend_t> & backends, const std::vector<h2o_key_rotation> & rotations,
        F f) {
    std::vector<const h2o_key_rotation *> left;
    for (const auto & r : rotations) {
        left.push_back(&r);
    }
    for (const auto & backend : backends) {
        h2o_rows_graph                    graph(backend, rotations.size()*N_TENSORS);
        std::map<uint32_t, ggml_tensor *> hadamards;
        left.erase(std::remove_if(left.begin(), left.end(),
                [&](const auto * r) { return add_rotation(graph, hadamards, *r); }), left.end());
        f(graph, backend);
    }
    if (!left.empty()) {
        throw h2o_refusal(h2o_reason::POSITIONS,
                std::string("[h2o] positions cache needs keys that their device can rotate: ") +
                ggml_backend_buft_name(ggml_backend_buffer_get_type(left[0]->rows.t->buffer)) + " cannot rotate " +
                ggml_type_name(left[0]->rows.t->type) + ". Use positions text, or another type of K");
    }
}

void h2o_key_rotor::rotate(const std::vector<ggml_backend_t> & backends,
        const std::vector<h2o_key_rotation> & rotations) {
    for_backends(backends, rotations, [&](h2o_rows_graph & graph, ggml_backend_t backend) {
        graph.compute(allocators[backend], "keys could not be rotated");
        ggml_backend_synchronize(backend);
    });
}

void h2o_key_rotor::check(const std::vector<ggml_backend_t> & backends,
        const std::vector<h2o_key_rotation> & rotations) {
    for_backends(backends, rotations, [](h2o_rows_graph &, ggml_backend_t) {});
}
