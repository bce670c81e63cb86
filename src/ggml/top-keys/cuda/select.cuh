#pragma once

// The highest of some numbers, by a block of threads.

#include "ggml/cuda/launch.cuh"

constexpr int H2O_SELECT_THREADS = 1024;
constexpr int H2O_SELECT_WARPS   = H2O_SELECT_THREADS/WARP_SIZE;

// Ranks are ordered as numbers are. 0: NaN.
static __device__ __forceinline__ uint32_t h2o_rank(float x) {
    const uint32_t bits = __float_as_uint(x);

    return isnan(x) ? 0 : x == 0.0f ? 0x80000000 : bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

struct h2o_select_scratch {
    int      counts[256];
    uint32_t prefix;
    int      wanted;
    bool     is_found;
    int      n_more[H2O_SELECT_WARPS];
    int      n_equal[H2O_SELECT_WARPS];
};

// The n_top highest of n numbers that are not NaN, as their indices in ascending order; of equal ones the first.
// Returns how many there are. All threads call it.
static __device__ int h2o_select(const float * x, int n, int n_top, int32_t * top, h2o_select_scratch & s) {
    const int thread = threadIdx.x;
    const int lane   = thread%WARP_SIZE;
    const int warp   = thread/WARP_SIZE;

    // byte by byte: the rank of the n_top-th, and how many of that rank are chosen
    uint32_t threshold = 0;
    int      n_equal   = n_top;
    uint32_t mask      = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (thread < 256) {
            s.counts[thread] = 0;
        }
        if (thread == 0) {
            s.is_found = false;
        }
        __syncthreads();
        for (int i = thread; i < n; i += H2O_SELECT_THREADS) {
            const uint32_t rank = h2o_rank(x[i]);
            if (rank > 0 && (rank & mask) == threshold) {
                atomicAdd(&s.counts[rank >> shift & 255], 1);
            }
        }
        __syncthreads();

        if (thread < 256) { // has a byte
            int above = 0;
            for (int i = thread + 1; i < 256; ++i) {
                above += s.counts[i];
            }
            if (above < n_equal && above + s.counts[thread] >= n_equal) {
                s.is_found = true;
                s.prefix   = threshold | (uint32_t) thread << shift;
                s.wanted   = n_equal - above;
            }
        }
        __syncthreads();
        const bool is_found = s.is_found;
        threshold = is_found ? s.prefix : 1;
        n_equal   = is_found ? s.wanted : n;
        mask     |= 255u << shift;
        __syncthreads(); // it was read
        if (!is_found) { // there are fewer
            break;
        }
    }

    int n_more_before  = 0;
    int n_equal_before = 0;
    for (int start = 0; start < n; start += H2O_SELECT_THREADS) {
        const int      i     = start + thread;
        const uint32_t rank  = i < n ? h2o_rank(x[i]) : 0;
        const unsigned more  = __ballot_sync(0xffffffff, rank > threshold);
        const unsigned equal = __ballot_sync(0xffffffff, rank == threshold);

        if (lane == 0) {
            s.n_more [warp] = __popc(more);
            s.n_equal[warp] = __popc(equal);
        }
        __syncthreads();

        const unsigned before = (1u << lane) - 1;
        int at_more  = n_more_before  + __popc(more  & before);
        int at_equal = n_equal_before + __popc(equal & before);
        for (int w = 0; w < H2O_SELECT_WARPS; ++w) {
            at_more        += w < warp ? s.n_more [w] : 0;
            at_equal       += w < warp ? s.n_equal[w] : 0;
            n_more_before  += s.n_more [w];
            n_equal_before += s.n_equal[w];
        }
        if (rank > threshold || (rank == threshold && at_equal < n_equal)) {
            top[at_more + min(at_equal, n_equal)] = i;
        }
        __syncthreads();
    }
    return n_more_before + min(n_equal_before, n_equal);
}
