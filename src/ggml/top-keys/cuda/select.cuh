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

constexpr int H2O_SELECT_BINS = 2*H2O_SELECT_THREADS;

struct h2o_select_scratch {
    int      counts[H2O_SELECT_BINS];
    int      sums[H2O_SELECT_WARPS];
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

    // digit by digit, of 11, 11 and 10 bits: the rank of the n_top-th, and how many of that rank are chosen
    uint32_t threshold = 0;
    int      n_equal   = n_top;
    uint32_t above     = 0; // bits of the digits before
    for (int digit = 0; digit < 3; ++digit) {
        const int      shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
        const uint32_t bits  = digit < 2 ? H2O_SELECT_BINS - 1 : H2O_SELECT_BINS/2 - 1;

        s.counts[thread] = s.counts[thread + H2O_SELECT_THREADS] = 0;
        if (thread == 0) {
            s.is_found = false;
        }
        __syncthreads();
#pragma unroll 4
        for (int i = thread; i < n; i += H2O_SELECT_THREADS) {
            const uint32_t rank = h2o_rank(x[i]);
            if (rank > 0 && (rank & above) == threshold) {
                atomicAdd(&s.counts[rank >> shift & bits], 1);
            }
        }
        __syncthreads();

        // two bins of a thread, the highest first, and how many numbers come before them
        const int bin   = H2O_SELECT_BINS - 1 - 2*thread;
        const int n_bin = s.counts[bin];
        const int n_two = n_bin + s.counts[bin - 1];

        int sum = n_two;
#pragma unroll
        for (int offset = 1; offset < WARP_SIZE; offset *= 2) {
            const int other = __shfl_sync(0xffffffff, sum, max(lane - offset, 0), WARP_SIZE);
            sum += lane >= offset ? other : 0;
        }
        if (lane == WARP_SIZE - 1) {
            s.sums[warp] = sum;
        }
        __syncthreads();
        int before = sum - n_two;
        for (int w = 0; w < warp; ++w) {
            before += s.sums[w];
        }
        if (before < n_equal && before + n_two >= n_equal) {
            const bool is_first = before + n_bin >= n_equal;

            s.is_found = true;
            s.prefix   = threshold | (uint32_t) (is_first ? bin : bin - 1) << shift;
            s.wanted   = n_equal - before - (is_first ? 0 : n_bin);
        }
        __syncthreads();
        const bool is_found = s.is_found;
        threshold = is_found ? s.prefix : 1;
        n_equal   = is_found ? s.wanted : n;
        above    |= bits << shift;
        __syncthreads(); // it was read
        if (!is_found) { // there are fewer
            break;
        }
    }

    // each warp has a part of the numbers
    const int n_part = (n + H2O_SELECT_THREADS - 1)/H2O_SELECT_THREADS*WARP_SIZE;
    const int end    = min((warp + 1)*n_part, n);

    const auto rank_of = [&](int i) { return i < end ? h2o_rank(x[i]) : 0; };

    int n_more = 0, n_same = 0;
#pragma unroll 4
    for (int start = warp*n_part; start < end; start += WARP_SIZE) {
        const uint32_t rank = rank_of(start + lane);
        n_more += __popc(__ballot_sync(0xffffffff, rank > threshold));
        n_same += __popc(__ballot_sync(0xffffffff, rank == threshold));
    }
    if (lane == 0) {
        s.n_more [warp] = n_more;
        s.n_equal[warp] = n_same;
    }
    __syncthreads();

    int more_before = 0, equal_before = 0, n_all = 0, n_all_equal = 0;
    for (int w = 0; w < H2O_SELECT_WARPS; ++w) {
        more_before  += w < warp ? s.n_more [w] : 0;
        equal_before += w < warp ? s.n_equal[w] : 0;
        n_all        += s.n_more [w];
        n_all_equal  += s.n_equal[w];
    }
#pragma unroll 4
    for (int start = warp*n_part; start < end; start += WARP_SIZE) {
        const uint32_t rank   = rank_of(start + lane);
        const unsigned more   = __ballot_sync(0xffffffff, rank > threshold);
        const unsigned equal  = __ballot_sync(0xffffffff, rank == threshold);
        const unsigned before = (1u << lane) - 1;

        const int at_more  = more_before  + __popc(more  & before);
        const int at_equal = equal_before + __popc(equal & before);
        if (rank > threshold || (rank == threshold && at_equal < n_equal)) {
            top[at_more + min(at_equal, n_equal)] = start + lane;
        }
        more_before  += __popc(more);
        equal_before += __popc(equal);
    }
    __syncthreads(); // the counts were read
    return n_all + min(n_all_equal, n_equal);
}
