#include "h2o/store/threads.h"

#include "ggml-cpp.h"

#include <atomic>
#include <exception>
#include <new>

namespace {

struct work {
    work(size_t n, const std::function<void(size_t)> & f) : n(n), f(f) {}

    const size_t n;
    const std::function<void(size_t)> & f;

    std::atomic<size_t> next { 0 };

    std::atomic_flag   failed = ATOMIC_FLAG_INIT;
    std::exception_ptr error;

    void run() {
        try {
            for (size_t i = next++; i < n; i = next++) {
                f(i);
            }
        } catch (...) {
            if (!failed.test_and_set()) {
                error = std::current_exception();
            }
        }
    }
};

} // namespace

void h2o_for_each(ggml_backend_t cpu, size_t n, const std::function<void(size_t)> & f) {
    work w(n, f);

    if (cpu) {
        ggml_init_params params = { 2*ggml_tensor_overhead() + ggml_graph_overhead_custom(1, false), nullptr, false };
        ggml_context_ptr ctx { ggml_init(params) };
        if (!ctx) {
            throw std::bad_alloc();
        }

        const auto run = [](ggml_tensor *, int, int, void * data) { static_cast<work *>(data)->run(); };

        ggml_cgraph * gf = ggml_new_graph_custom(ctx.get(), 1, false);
        ggml_build_forward_expand(gf, ggml_custom_4d(ctx.get(), GGML_TYPE_I32, 1, 1, 1, 1, nullptr, 0, run, GGML_N_TASKS_MAX, &w));
        ggml_backend_graph_compute(cpu, gf);
    }
    w.run(); // what is left, if no thread could be had

    if (w.error) {
        std::rethrow_exception(w.error);
    }
}
