#include "ggml/max-rows/cuda/max-rows.cuh"

#include "ggml/cuda/numbers.cuh"

// one warp per row
static __global__ void k_max_rows(const float * __restrict__ src, float * __restrict__ dst, const int64_t n) {
    const int64_t row = blockIdx.x;
    const float * x   = src + row*n;

    float max = -INFINITY;
    for (int64_t i = threadIdx.x; i < n; i += WARP_SIZE) {
        max = h2o_max_or_nan(max, x[i]);
    }
#pragma unroll
    for (int offset = WARP_SIZE/2; offset > 0; offset >>= 1) {
        max = h2o_max_or_nan(max, __shfl_xor_sync(0xffffffff, max, offset, WARP_SIZE));
    }
    if (threadIdx.x == 0) {
        dst[row] = max;
    }
}

void ggml_cuda_op_max_rows(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];

    h2o_launch(k_max_rows, dim3(ggml_nrows(src0)), dim3(WARP_SIZE), 0, ctx.stream(), (const float *) src0->data,
            (float *) dst->data, src0->ne[0]);
}
