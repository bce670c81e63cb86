#pragma once

// Rows of q, K and V in shared memory.

#include "ggml/attention/cuda/args.cuh"
#include "ggml/cuda/mma.cuh"

constexpr int H2O_ATTN_WARP_ROWS = 16; // as a product of tensor cores has

// Sizes of tiles for heads of up to D numbers. Rows in shared memory are 16 bytes longer: 8 of them use all of its
// banks.
template <typename T, int D>
struct h2o_tile_sizes {
    static constexpr int n_keys  = D > 256 && sizeof(T) > 2 ? 16 : D > 128 ? 32 : 64;
    static constexpr int d_out   = D > 256 ? 256 : D; // numbers of output of a block: registers hold no more
    static constexpr int ld      = D + 16/(int) sizeof(T);
    static constexpr int q_parts = h2o_number<T>::is_16 ? 2 : 1; // that make up a number of q, as it has 24 bits

    static constexpr __host__ __device__ size_t q_size(int n_warps) {
        return sizeof(T)*n_warps*H2O_ATTN_WARP_ROWS*ld*q_parts;
    }
    static constexpr __host__ __device__ size_t shared(int n_warps) { return q_size(n_warps) + sizeof(T)*n_keys*ld; }
};

// Numbers [i, i + 8) of a row, 0 beyond its end. Returns whether all are finite.
// A number of Q8_0 that F16 does not have is not finite: an F16 cache would not have it either.
template <typename T>
static __device__ __forceinline__ bool h2o_load_8(const h2o_cuda_rows & t, const char * row, int i, T * dst) {
    alignas(16) T x[8];

    if (t.type == h2o_number<T>::type && t.is_aligned) {
        constexpr int n = sizeof(T)*8/sizeof(uint4);
        for (int j = 0; j < n; ++j) {
            ((uint4 *) x)[j] = ((const uint4 *) (row + i*sizeof(T)))[j];
        }
    } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int at = i + j;
            float value = 0.0f;
            if (at < t.d) {
                if (t.type == GGML_TYPE_F32) {
                    value = ((const float *) row)[at];
                } else if (t.type == GGML_TYPE_F16) {
                    value = (float) ((const half *) row)[at];
                } else if (t.type == GGML_TYPE_BF16) {
                    value = (float) ((const nv_bfloat16 *) row)[at];
                } else if (t.type == GGML_TYPE_Q8_0) { // blocks of a scale in F16 and 32 numbers
                    const char * block = row + at/32*34;
                    value = (float) *(const half *) block*(float) ((const int8_t *) block)[2 + at%32];
                } else {
                    __trap();
                }
            }
            x[j] = h2o_number<T>::from(value);
        }
    }

    bool is_finite = true;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        is_finite = is_finite && (float) x[j]*0.0f == 0.0f;
    }
    for (int j = 0; j < (int) (8*sizeof(T)/sizeof(uint4)); ++j) {
        ((uint4 *) dst)[j] = ((const uint4 *) x)[j];
    }
    return is_finite;
}

// A tile of a KV head's keys or values, numbers [first, end) of each, 0 where the number of a row is negative. Returns
// whether all numbers that the thread read are finite.
template <typename T, int D>
static __device__ __forceinline__ bool h2o_load_tile(const h2o_cuda_rows & t, const int * numbers, int h, T * tile,
        int first, int end) {
    using sizes = h2o_tile_sizes<T, D>;

    const int n_8 = (end - first + 15)/16*2;

    bool is_finite = true;
    for (int c = threadIdx.x; c < sizes::n_keys*n_8; c += blockDim.x) {
        const int key = c/n_8;
        const int i   = c%n_8*8;
        T * dst = tile + key*sizes::ld + i;

        if (numbers[key] >= 0 && first + i < end) {
            is_finite = h2o_load_8(t, t.row(numbers[key], h), first + i, dst) && is_finite;
        } else {
            for (int j = 0; j < (int) (8*sizeof(T)/sizeof(uint4)); ++j) {
                ((uint4 *) dst)[j] = { 0, 0, 0, 0 };
            }
        }
    }
    return is_finite;
}

// A warp's rows of q, each by two threads. In 16 bits they are scaled by a power of two, so that the largest number is
// about 1, and split into two parts. Writes what each row's products are then to be multiplied by: two factors, as one
// could overflow.
//   q:       [q_parts][rows of the block][ld]
//   factors: [rows of the block][2]
template <typename T, int D>
static __device__ __forceinline__ void h2o_load_queries(const h2o_cuda_attn & a, int h, int block, int row, int end,
        T * q, float * factors) {
    using sizes = h2o_tile_sizes<T, D>;

    const int lane   = threadIdx.x%WARP_SIZE;
    const int r      = threadIdx.x/WARP_SIZE*H2O_ATTN_WARP_ROWS + lane/2;
    const int n_rows = blockDim.x/WARP_SIZE*H2O_ATTN_WARP_ROWS;
    const int d_pad  = (a.k.d + 15)/16*16;

    const float * src = row + r < end ? a.q_of(row + r, h, block) : nullptr;

    const auto load_4 = [&](int i) {
        float4 x = { 0.0f, 0.0f, 0.0f, 0.0f };
        if (src && a.q_is_aligned && i < a.k.d) {
            x = *(const float4 *) (src + i);
        } else if (src) {
            x.x = i     < a.k.d ? src[i]     : 0.0f;
            x.y = i + 1 < a.k.d ? src[i + 1] : 0.0f;
            x.z = i + 2 < a.k.d ? src[i + 2] : 0.0f;
            x.w = i + 3 < a.k.d ? src[i + 3] : 0.0f;
        }
        return x;
    };

    int exponent = 0;
    if (h2o_number<T>::is_16) {
        float peak = 0.0f; // of finite numbers
        const auto add = [&](float x) { peak = fabsf(x) > peak && fabsf(x) < INFINITY ? fabsf(x) : peak; };
        for (int i = lane%2*4; i < d_pad; i += 8) {
            const float4 x = load_4(i);
            add(x.x);
            add(x.y);
            add(x.z);
            add(x.w);
        }
        peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, 1, WARP_SIZE));
        if (peak > 0.0f) {
            frexpf(peak, &exponent);
        }
    }
    const int   half_exponent = exponent/2;
    const float down[2]       = { ldexpf(1.0f, -half_exponent), ldexpf(1.0f, half_exponent - exponent) };

    T * dst = q + r*sizes::ld;
    for (int i = lane%2*4; i < d_pad; i += 8) {
        const float4 x4   = load_4(i);
        const float  x[4] = { x4.x, x4.y, x4.z, x4.w };
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float y = x[j]*down[0]*down[1];
            const T     z = h2o_number<T>::from(y);
            dst[i + j] = z;
            if (sizes::q_parts > 1) {
                dst[n_rows*sizes::ld + i + j] = h2o_number<T>::from(y*0.0f == 0.0f ? y - (float) z : 0.0f);
            }
        }
    }
    if (lane%2 == 0) {
        factors[2*r]     = ldexpf(1.0f, half_exponent);
        factors[2*r + 1] = ldexpf(1.0f, exponent - half_exponent)*a.scale;
    }
}
