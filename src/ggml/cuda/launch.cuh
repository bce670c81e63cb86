#pragma once

// What kernels need that is not CUDA for the CPU's compiler: tests run them in software (tests/support/cuda).

#include "ggml-cuda/common.cuh"

#ifdef H2O_CUDA_EMULATED

#define H2O_DYNAMIC_SHARED(name) char * name = (char *) emulator::here.shared

template <typename... P, typename... A>
static void h2o_launch(void (* kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t, A... args) {
    emulator::launch(grid, block, shared, [&] { kernel(args...); });
}

#else

#define H2O_DYNAMIC_SHARED(name) extern __shared__ __align__(16) char name[]

template <typename... P, typename... A>
static void h2o_launch(void (* kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, A... args) {
    kernel<<<grid, block, shared, stream>>>(args...);
    CUDA_CHECK(cudaGetLastError());
}

#endif
