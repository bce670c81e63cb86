// Kernels that are wrong, so that tests see that the emulator finds it.

#include "ggml/cuda/launch.cuh"

#include <stdexcept>

// each thread reads what its neighbour writes, without a barrier
static __global__ void k_race(int * dst) {
    __shared__ int values[64];
    values[threadIdx.x] = 0;
    __syncthreads();
    values[threadIdx.x] = threadIdx.x;
    dst[threadIdx.x] = values[(threadIdx.x + 1)%64];
}

// a warp reads what the other one writes: that each waits for its own threads is no barrier between them
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

// 64 numbers; returns whether the emulator stopped the kernel
extern "C" int cuda_in_software_mistake(int which, int * dst) {
    void (* kernels[])(int *) = { k_race, k_race_of_warps, k_divergence, k_two_barriers };
    try {
        h2o_launch(kernels[which], dim3(1), dim3(64), 0, nullptr, dst);
    } catch (const std::runtime_error &) {
        return 1;
    }
    return 0;
}
