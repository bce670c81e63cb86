#include "ggml/max-rows/cuda/max-rows.cuh"

#include "ggml/cuda/numbers.cuh"

// one warp per row
static __global__ void k_max_rows(const char * __restrict__ src, float * __restrict__ dst, const int64_t ne00,
        const int64_t ne01, const int64_t ne02, const int64_t nb01, const int64_t nb02, const int64_t nb03) {
    const int64_t row = blockIdx.x;

    const int64_t i1 = row % ne01;
    const int64_t i2 = (row / ne01) % ne02;
    const int64_t i3 = row / (ne01*ne02);

    const float * x = (const float *) (src + i1*nb01 + i2*nb02 + i3*nb03);

    float max = -INFINITY;
    for (int64_t i = threadIdx.x; i < ne00; i += WARP_SIZE) {
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

    h2o_launch(k_max_rows, dim3(ggml_nrows(src0)), dim3(WARP_SIZE), 0, ctx.stream(), (const char *) src0->data,
            (float *) dst->data, src0->ne[0], src0->ne[1], src0->ne[2], src0->nb[1], src0->nb[2], src0->nb[3]);
}
