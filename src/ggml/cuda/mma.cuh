#pragma once

// Products by tensor cores, for F16 and bytes. A warp's thread has of C (16 x 8) rows lane/4 and lane/4 + 8, columns lane%4*2 and one
// more; A is 16 x 16, B 16 x 8.

#include "ggml/cuda/launch.cuh"

// of four 8 x 8 matrices, whose 32 rows of 16 bytes the threads name, each thread's pair
static __device__ __forceinline__ void h2o_ldmatrix(uint32_t (& x)[4], const void * row) {
#ifdef H2O_CUDA_EMULATED
    emulated_ldmatrix(x, row, false);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"((unsigned) __cvta_generic_to_shared(row)) : "memory");
#endif
}

static __device__ __forceinline__ void h2o_ldmatrix_trans(uint32_t (& x)[4], const void * row) {
#ifdef H2O_CUDA_EMULATED
    emulated_ldmatrix(x, row, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"((unsigned) __cvta_generic_to_shared(row)) : "memory");
#endif
}

// The bits of 3*2^22. A whole number below 2^22 in size, added to them, makes the bits of a float.
constexpr int H2O_FLOAT_BITS = 0x4b400000;

// a*b of signed bytes, as float: A is 16 x 32, B 32 x 8. A thread has 4 bytes of each row, or column, that it has in 16
// bits a pair of. The sums are below 2^22.
static __device__ __forceinline__ void h2o_mma_bytes(float (& c)[4], const int (& a)[4], int b0, int b1) {
    int d[4];
#ifdef H2O_CUDA_EMULATED
    d[0] = d[1] = d[2] = d[3] = H2O_FLOAT_BITS;
    emulated_mma_bytes(d, a, b0, b1);
#elif __CUDA_ARCH__ >= GGML_CUDA_CC_AMPERE
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(H2O_FLOAT_BITS));
#else
    NO_DEVICE_CODE;
#endif
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        c[i] = __uint_as_float((uint32_t) d[i]) - 12582912.0f;
    }
}

// c += a*b of F16
static __device__ __forceinline__ void h2o_mma_halves(float (& c)[4], const uint32_t (& a)[4], uint32_t b0, uint32_t b1) {
#ifdef H2O_CUDA_EMULATED
    emulated_mma<half>(c, a, b0, b1);
#elif __CUDA_ARCH__ >= GGML_CUDA_CC_AMPERE
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    NO_DEVICE_CODE;
#endif
}
