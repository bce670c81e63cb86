#pragma once

// Asynchronous copies to shared memory (cp.async). A thread waits for its own; a barrier then shows them to the others.

#include "ggml/cuda/launch.cuh"

// 16 bytes of global memory, or zeros; both addresses are multiples of 16
static __device__ __forceinline__ void h2o_copy_async(void * dst, const void * src, bool is_read) {
#ifdef H2O_CUDA_EMULATED
    emulator::copy_async(dst, src, 16, is_read);
#elif __CUDA_ARCH__ >= GGML_CUDA_CC_AMPERE
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        : : "r"((unsigned) __cvta_generic_to_shared(dst)), "l"(src), "r"(is_read ? 16 : 0) : "memory");
#else
    NO_DEVICE_CODE;
#endif
}

static __device__ __forceinline__ void h2o_wait_for_copies() {
#ifdef H2O_CUDA_EMULATED
    emulator::wait_for_copies();
#elif __CUDA_ARCH__ >= GGML_CUDA_CC_AMPERE
    asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}
