#pragma once

// Work buffers of the operators on the CPU, and how threads share the work.

#include "ggml-cpu-impl.h"

#include <cstddef>
#include <cstdint>

constexpr int64_t h2o_ceil_div(int64_t a, int64_t b) {
    return (a + b - 1)/b;
}

// Cuts pieces of whole cache lines off a work buffer, or says how large it must be.
struct h2o_take {
    char * const start; // or NULL
    size_t       size = 0; // bytes

    template <typename T>
    T * get(int64_t n) {
        char * res = start ? start + size : nullptr;
        size += h2o_ceil_div(n*sizeof(T), 64)*64;
        return (T *) res;
    }
};

// Bytes of a thread. A driver D takes its buffers in get_shared(arena), for all threads, and get_scratch(arena), for one.
template <typename D>
size_t h2o_scratch_size(const D & driver) {
    h2o_take arena { nullptr };
    driver.get_scratch(arena);
    return arena.size;
}

template <typename D>
size_t h2o_work_size(const D & driver, int n_threads) {
    h2o_take arena { nullptr };
    driver.get_shared(arena);
    return arena.size + n_threads*h2o_scratch_size(driver) + 64;
}

template <typename D>
void h2o_compute(const D & driver, const ggml_compute_params * params) {
    GGML_ASSERT(h2o_work_size(driver, params->nth) <= params->wsize && "planned for as many threads or more");

    h2o_take arena { (char *) GGML_PAD((uintptr_t) params->wdata, 64) };
    const auto shared = driver.get_shared(arena);
    arena.size += params->ith*h2o_scratch_size(driver);
    driver.compute(params, shared, driver.get_scratch(arena));
}

// f(item) for n items, each by one thread, once all threads are here. They must meet again before the next items.
template <typename F>
void h2o_for_items(const ggml_compute_params * params, int64_t n, const F & f) {
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);
    for (int64_t i = params->ith; i < n; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        f(i);
    }
}
