// What H2O's files take from upstream's common.cuh, for the emulator.

#pragma once

#include "emulator.h"

#include "ggml-impl.h"

#include <memory>

#define WARP_SIZE 32

#define GGML_CUDA_CC_AMPERE 800
#define GGML_CUDA_CC_IS_NVIDIA(cc) true

#define CUDA_CHECK(call) call
#define CUDA_SET_SHARED_MEMORY_LIMIT(kernel, nbytes) ((void) (nbytes))

typedef void * cudaStream_t;

inline void cudaMemsetAsync(void * p, int value, size_t n, cudaStream_t) { memset(p, value, n); }

struct ggml_cuda_device_info {
    struct { int cc, nsm; size_t smpbo; } devices[1];
};

// as an RTX 5090, which has the least shared memory of supported GPUs
inline const ggml_cuda_device_info & ggml_cuda_info() {
    static const ggml_cuda_device_info info = { { { 1200, 170, 99*1024 } } };
    return info;
}

inline int ggml_cuda_get_device() { return 0; }

struct ggml_cuda_pool {};

// as new as memory is: it holds NaN
template <typename T>
struct ggml_cuda_pool_alloc {
    std::unique_ptr<T[]> memory;

    ggml_cuda_pool_alloc(ggml_cuda_pool &) {}
    ggml_cuda_pool_alloc(ggml_cuda_pool &, size_t n) { alloc(n); }

    T * alloc(size_t n) {
        memory.reset(new T[n]);
        memset((void *) memory.get(), 0xff, n*sizeof(T));
        return get();
    }

    T * get() const { return memory.get(); }
};

struct ggml_backend_cuda_context {
    ggml_cuda_pool scratch;

    ggml_cuda_pool & pool() { return scratch; }

    cudaStream_t stream() { return nullptr; }
};
