#include "ggml/max-rows/cuda/max-rows.cuh"

#include "ggml/cuda/numbers.cuh"

static __device__ __forceinline__ float warp_reduce_max_or_nan(float x) {
#pragma unroll
    for (int offset = WARP_SIZE/2; offset > 0; offset >>= 1) {
        x = h2o_max_or_nan(x, __shfl_xor_sync(0xffffffff, x, offset, WARP_SIZE));
    }
    return x;
}

// one block per row
template <typename T>
static __global__ void k_max_rows(const char * __restrict__ src, T * __restrict__ dst, const int64_t ne00,
        const int64_t ne01, const int64_t ne02, const int64_t nb01, const int64_t nb02, const int64_t nb03) {
    const int64_t row = blockIdx.x;

    const int64_t i1 = row % ne01;
    const int64_t i2 = (row / ne01) % ne02;
    const int64_t i3 = row / (ne01*ne02);

    const T * x = (const T *) (src + i1*nb01 + i2*nb02 + i3*nb03);

    float max = -INFINITY;
    for (int64_t i = threadIdx.x; i < ne00; i += blockDim.x) {
        max = h2o_max_or_nan(max, (float) x[i]);
    }
    max = warp_reduce_max_or_nan(max);

    if (blockDim.x > WARP_SIZE) {
        __shared__ float max_warp[32];

        const int lane = threadIdx.x % WARP_SIZE;
        if (lane == 0) {
            max_warp[threadIdx.x / WARP_SIZE] = max;
        }
        __syncthreads();

        max = lane < blockDim.x / WARP_SIZE ? max_warp[lane] : -INFINITY;
        max = warp_reduce_max_or_nan(max);
    }

    if (threadIdx.x == 0) {
        dst[row] = max;
    }
}

template <typename T>
static void max_rows_cuda(const ggml_tensor * src0, ggml_tensor * dst, cudaStream_t stream) {
    const int64_t nrows = ggml_nrows(src0);
    const int     nsm   = ggml_cuda_info().devices[ggml_cuda_get_device()].nsm;

    // few rows: larger blocks hide the latency
    const int block_size = nrows / nsm < 2 ? 512 : src0->ne[0] < 1024 ? 32 : 128;

    h2o_launch(k_max_rows<T>, dim3(nrows), dim3(block_size), 0, stream, (const char *) src0->data, (T *) dst->data,
            src0->ne[0], src0->ne[1], src0->ne[2], src0->nb[1], src0->nb[2], src0->nb[3]);
}

void ggml_cuda_op_max_rows(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];

    if (src0->type == GGML_TYPE_F16) {
        max_rows_cuda<half>(src0, dst, ctx.stream());
    } else {
        max_rows_cuda<float>(src0, dst, ctx.stream());
    }
}
