// CUDA in software: kernels compiled for the CPU, so that tests run them without a GPU.
//
// Blocks run one after the other, the threads of a block as fibres: each runs until it waits for others, and a warp
// until it waits for the block. In which order they run is chosen, and results must not depend on it: what threads that race read
// depends on who ran first.

#pragma once

#include "ggml.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define H2O_CUDA_EMULATED

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static // one block runs at a time
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;

    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(16) uint4  { uint32_t x, y, z, w; };
struct alignas(16) int4   { int      x, y, z, w; };
struct alignas(16) float4 { float    x, y, z, w; };

namespace emulator {

enum order { ASCENDING, DESCENDING, SHUFFLED };

// of a block
struct place {
    dim3 grid, block, index;
    void * shared; // dynamic
};

extern place here;
extern order in_order;

unsigned thread_index();

// Throws std::runtime_error if threads wait for each other forever, or meet in different places, and if one gives up.
void launch(dim3 grid, dim3 block, size_t shared, const std::function<void()> & kernel);

void sync_block();
void give_up();

// Copies are made when their thread waits for them, so that a kernel which forgets to wait finds the old contents.
void copy_async(void * dst, const void * src, size_t size, bool is_read);
void wait_for_copies();

// Every thread gives a value to its warp, or to the block, and sees all others' until the next call. `what` is the operation,
// which must be the same for all.
const void * exchange_warp(const char * what, const void * value, size_t size);
const void * exchange_block(const char * what, const void * value, size_t size);

template <typename T>
const T * exchange(const char * what, const T & value) {
    return (const T *) exchange_warp(what, &value, sizeof(value));
}

} // namespace emulator

struct emulated_thread { struct { operator unsigned() const { return emulator::thread_index(); } } x; };

#define threadIdx (emulated_thread())
#define blockIdx  (emulator::here.index)
#define blockDim  (emulator::here.block)
#define gridDim   (emulator::here.grid)

inline void __syncthreads() { emulator::sync_block(); }
inline void __syncwarp()    { emulator::exchange("__syncwarp", 0); }
inline void __trap()        { emulator::give_up(); }

inline int __syncthreads_or(int x) {
    const int * all = (const int *) emulator::exchange_block("__syncthreads_or", &x, sizeof(x));
    int res = 0;
    for (unsigned i = 0; i < blockDim.x; ++i) {
        res |= all[i];
    }
    return res != 0;
}

template <typename T>
T __shfl_sync(unsigned, T x, int lane, int = 32) { return emulator::exchange("__shfl_sync", x)[lane & 31]; }

template <typename T>
T __shfl_xor_sync(unsigned, T x, int mask, int = 32) {
    return emulator::exchange("__shfl_xor_sync", x)[(emulator::thread_index() & 31) ^ mask];
}

inline unsigned __ballot_sync(unsigned, int x) {
    const int * all = emulator::exchange("__ballot_sync", x);
    unsigned res = 0;
    for (int i = 0; i < 32; ++i) {
        res |= (all[i] != 0 ? 1u : 0u) << i;
    }
    return res;
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }

template <typename T>
T atomicAdd(T * p, T x) { // threads take turns
    const T old = *p;
    *p = old + x;
    return old;
}

inline float __fmul_rn(float a, float b) { return a*b; }
inline float __fdiv_rn(float a, float b) { return a/b; }

inline float    __uint_as_float(uint32_t x) { float    y; memcpy(&y, &x, sizeof(y)); return y; }
inline uint32_t __float_as_uint(float    x) { uint32_t y; memcpy(&y, &x, sizeof(y)); return y; }

using std::isnan;

template <typename T> T min(T a, T b) { return b < a ? b : a; }
template <typename T> T max(T a, T b) { return a < b ? b : a; }

// Halves: only their bits, as memory has them.

struct half {
    uint16_t bits;

    operator float() const { return ggml_fp16_to_fp32(bits); }

    half & operator=(float x) {
        bits = ggml_fp32_to_fp16(x);
        return *this;
    }
};

struct nv_bfloat16 {
    uint16_t bits;

    operator float() const { return ggml_bf16_to_fp32({ bits }); }
};

struct alignas(4) half2 { half x, y; };

inline half __float2half(float x) { return { ggml_fp32_to_fp16(x) }; }
inline half2 __floats2half2_rn(float x, float y) { return { __float2half(x), __float2half(y) }; }

// Products by a warp, as the PTX manual defines the fragments of each thread.

template <typename T>
float emulated_number(uint32_t pair, int i) { return T { (uint16_t) (pair >> 16*i) }; }

// ldmatrix.m8n8.x4: of four matrices of 8 x 8 numbers, whose rows' addresses the threads give, each thread gets two numbers of each
inline void emulated_ldmatrix(uint32_t (& x)[4], const void * row, bool transposed) {
    const void * const * rows = emulator::exchange(transposed ? "ldmatrix.trans" : "ldmatrix", row);

    const int lane = emulator::thread_index() & 31;
    for (int m = 0; m < 4; ++m) {
        uint16_t pair[2];
        for (int i = 0; i < 2; ++i) {
            const int r = transposed ? 2*(lane%4) + i : lane/4;
            const int c = transposed ? lane/4 : 2*(lane%4) + i;
            pair[i] = ((const uint16_t *) rows[8*m + r])[c];
        }
        x[m] = pair[0] | (uint32_t) pair[1] << 16;
    }
}

// c + x*y as tensor cores add up: 24 bits of the largest number count, all are aligned to these and cut off, and so is the sum.
// From A100 on they keep a bit or more besides (Fasi et al., Numerical behavior of NVIDIA tensor cores, 2021).
inline float emulated_sum(float c, const float (& x)[16], const float (& y)[16]) {
    float plain   = c;
    float largest = fabsf(c);
    for (int k = 0; k < 16; ++k) {
        plain  += x[k]*y[k];
        largest = fmaxf(largest, fabsf(x[k]*y[k]));
    }
    if (!std::isfinite(plain) || largest == 0.0f) {
        return plain;
    }
    const double scale = ldexp(1.0, 23 - ilogbf(largest));

    int64_t units = (int64_t) (c*scale);
    for (int k = 0; k < 16; ++k) {
        units += (int64_t) ((double) x[k]*y[k]*scale);
    }
    const double sum = units/scale;
    const float  res = (float) sum;
    return fabs(res) > fabs(sum) ? nextafterf(res, 0.0f) : res;
}

// mma.m16n8k16.row.col.f32: c += a*b
template <typename T>
void emulated_mma(float (& c)[4], const uint32_t (& a)[4], uint32_t b0, uint32_t b1) {
    struct operands { uint32_t a[4], b[2]; } mine = { { a[0], a[1], a[2], a[3] }, { b0, b1 } };
    const operands * all = emulator::exchange("mma", mine);

    const int lane = emulator::thread_index() & 31;
    for (int i = 0; i < 4; ++i) {
        const int row = lane/4 + i/2*8;
        const int col = lane%4*2 + i%2;
        float x[16];
        float y[16];
        for (int k = 0; k < 16; ++k) {
            x[k] = emulated_number<T>(all[row%8*4 + k%8/2].a[row/8 + k/8*2], k%2);
            y[k] = emulated_number<T>(all[col*4     + k%8/2].b[k/8], k%2);
        }
        c[i] = emulated_sum(c[i], x, y);
    }
}

// mma.m16n8k32.row.col.s32.s8.s8.s32: c += a*b
inline void emulated_mma_bytes(int (& c)[4], const int (& a)[4], int b0, int b1) {
    struct operands { int8_t a[4][4], b[2][4]; } mine;
    memcpy(mine.a, a, sizeof(mine.a));
    memcpy(mine.b[0], &b0, 4);
    memcpy(mine.b[1], &b1, 4);
    const operands * all = emulator::exchange("mma.s8", mine);

    const int lane = emulator::thread_index() & 31;
    for (int i = 0; i < 4; ++i) {
        const int row = lane/4 + i/2*8;
        const int col = lane%4*2 + i%2;
        for (int k = 0; k < 32; ++k) {
            c[i] += all[row%8*4 + k%16/4].a[row/8 + k/16*2][k%4]*all[col*4 + k%16/4].b[k/16][k%4];
        }
    }
}
