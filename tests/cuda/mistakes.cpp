// Kernels that are wrong, so that tests see that the emulator finds it.

#include "ggml/attention/cuda/load.cuh"

#include <stdexcept>

// each thread reads what its neighbour writes, without a barrier
static __global__ void k_race(int * dst) {
    __shared__ int values[64];
    values[threadIdx.x] = 0;
    __syncthreads();
    values[threadIdx.x] = threadIdx.x;
    dst[threadIdx.x] = values[(threadIdx.x + 1)%64];
}

// a warp reads the other's data: each waits for its own threads, without a barrier between them
static __global__ void k_race_of_warps(int * dst) {
    __shared__ int values[64];
    values[threadIdx.x] = 0;
    __syncthreads();
    values[threadIdx.x] = threadIdx.x;
    __syncwarp();
    dst[threadIdx.x] = values[(threadIdx.x + 32)%64];
}

// half of a warp waits for the other half
static __global__ void k_divergence(int * dst) {
    if (threadIdx.x%2 == 0) {
        dst[threadIdx.x] = __shfl_sync(0xffffffff, 1, 0);
    }
}

// the warps wait in different places
static __global__ void k_two_barriers(int * dst) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        dst[threadIdx.x] = __syncthreads_or(1);
    }
}

// K is of a type that attention does not have
static __global__ void k_unknown_type(int * dst) {
    h2o_cuda_rows rows = {};
    rows.type = GGML_TYPE_Q4_0;
    rows.d    = 8;
    alignas(16) float x[8];
    h2o_convert(rows, (const char *) dst, 0, x);
}

// 64 numbers; returns whether the emulator stopped the kernel
extern "C" int cuda_in_software_mistake(int which, int * dst) {
    void (* kernels[])(int *) = { k_race, k_race_of_warps, k_divergence, k_two_barriers, k_unknown_type };
    try {
        h2o_launch(kernels[which], dim3(1), dim3(64), 0, nullptr, dst);
    } catch (const std::runtime_error &) {
        return 1;
    }
    return 0;
}
