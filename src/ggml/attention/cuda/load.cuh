#pragma once

// Rows of q, K and V in shared memory.

#include "ggml/attention/cuda/args.cuh"
#include "ggml/cuda/copy.cuh"
#include "ggml/cuda/mma.cuh"

constexpr int H2O_ATTN_WARP_ROWS = 16; // as a product of tensor cores has
constexpr int H2O_ATTN_PIECE     = 16/(int) sizeof(half); // numbers that are copied at once

// Sizes of tiles for heads of up to D numbers. Rows in shared memory are 16 bytes longer: 8 of them use all of its
// banks.
template <int D>
struct h2o_tile_sizes {
    static constexpr int n_keys  = D > 128 ? 32 : 64;
    static constexpr int d_out   = D > 256 ? 256 : D; // numbers of output of a block: registers hold no more
    static constexpr int ld      = D + H2O_ATTN_PIECE;
    static constexpr int ld_v    = d_out + H2O_ATTN_PIECE;

    // blocks of a multiprocessor, at least
    static constexpr int min_blocks = D > 256 ? 1 : D > 128 ? 2 : 3;

    static constexpr __host__ __device__ int q_size(int n_warps) { return n_warps*H2O_ATTN_WARP_ROWS*ld; }

    // tiles of q in shared memory for sums: with two, copies and products overlap
    static constexpr int sum_stages = D > 256 ? 1 : 2;

    // bytes: q, K and V; or K, and q of these stages
    static constexpr __host__ __device__ size_t shared(int n_warps) {
        return sizeof(half)*(q_size(n_warps) + n_keys*(ld + ld_v));
    }
    static constexpr __host__ __device__ size_t shared_of_sums(int n_warps) {
        return sizeof(half)*(sum_stages*q_size(n_warps) + n_keys*ld);
    }
};

// Numbers of a row from the i-th on, 0 beyond its end. A number that F16 does not have is infinite, as in an F16 cache.
static __device__ __forceinline__ void h2o_convert(const h2o_cuda_rows & t, const char * row, int i,
        half (& x)[H2O_ATTN_PIECE]) {
    if (t.type == GGML_TYPE_Q8_0) { // blocks of a scale in F16 and 32 numbers
        const uint16_t * block = (const uint16_t *) (row + i/32*34);
        const float      scale = (float) *(const half *) block;
#pragma unroll
        for (int j = 0; j < H2O_ATTN_PIECE; j += 2) {
            const uint16_t two = i < t.d ? block[1 + (i%32 + j)/2] : 0;
            x[j]     = __float2half(scale*(float) (int8_t) (two & 255));
            x[j + 1] = __float2half(scale*(float) (int8_t) (two >> 8));
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < H2O_ATTN_PIECE; ++j) {
        float value = 0.0f;
        if (i + j < t.d) {
            if (t.type == GGML_TYPE_F32) {
                value = ((const float *) row)[i + j];
            } else if (t.type == GGML_TYPE_F16) {
                value = (float) ((const half *) row)[i + j];
            } else if (t.type == GGML_TYPE_BF16) {
                value = (float) ((const nv_bfloat16 *) row)[i + j];
            } else {
                __trap();
            }
        }
        x[j] = __float2half(value);
    }
}

// A tile of a KV head's keys or values, numbers [first, end) of each, at most D; else 0, and where a key has no row. It
// is there after h2o_wait_for_copies() and a barrier.
template <int D, int N_KEYS, int N_THREADS>
static __device__ __forceinline__ void h2o_load_tile(const h2o_cuda_rows & t, const int * rows, int h, half * tile,
        int first, int end) {
    constexpr int piece    = H2O_ATTN_PIECE;
    constexpr int n_pieces = D/piece;
    constexpr int n_turns  = N_KEYS*n_pieces/N_THREADS;

    static_assert(N_KEYS*n_pieces % N_THREADS == 0, "threads have as many pieces each");

    if (t.type == GGML_TYPE_F16 && t.is_aligned) {
        const char * of_head = t.data + h*t.head_stride + first*sizeof(half);
#pragma unroll 4
        for (int turn = 0; turn < n_turns; ++turn) {
            const int    c       = turn*N_THREADS + threadIdx.x;
            const int    key     = c/n_pieces;
            const int    i       = c%n_pieces*piece;
            const int    row     = rows[key];
            const bool   is_read = row >= 0 && first + i < end;
            const char * src     = of_head + (is_read ? row*t.stride + i*(int) sizeof(half) : 0);
            h2o_copy_async(tile + key*(D + piece) + i, src, is_read);
        }
        return;
    }
#pragma unroll 1
    for (int turn = 0; turn < n_turns; ++turn) {
        const int c   = turn*N_THREADS + threadIdx.x;
        const int key = c/n_pieces;
        const int i   = c%n_pieces*piece;

        alignas(16) half x[piece] = {};
        if (rows[key] >= 0 && first + i < end) {
            h2o_convert(t, t.row(rows[key], h), first + i, x);
        }
        *(uint4 *) (tile + key*(D + piece) + i) = *(const uint4 *) x;
    }
}

// Rounded rows of q from row on, 0 from end on, to be waited for likewise.
template <int D, int N_ROWS>
static __device__ __forceinline__ void h2o_load_queries(const h2o_cuda_attn & a, int h, int row, int end, half * q) {
    using sizes = h2o_tile_sizes<D>;

    constexpr int n_threads = N_ROWS/H2O_ATTN_WARP_ROWS*WARP_SIZE;
    constexpr int n_pieces  = D/H2O_ATTN_PIECE;

    const half * src = a.rounded + a.place_of(row, h)*a.d_q;
#pragma unroll 4
    for (int turn = 0; turn < N_ROWS*n_pieces/n_threads; ++turn) {
        const int  c       = turn*n_threads + threadIdx.x;
        const int  r       = c/n_pieces;
        const int  i       = c%n_pieces*H2O_ATTN_PIECE;
        const bool is_read = row + r < end && i < a.d_q;
        h2o_copy_async(q + r*sizes::ld + i, src + (is_read ? r*a.d_q + i : 0), is_read);
    }
}
