#include "ggml/top-keys/cuda/top-keys.cuh"

#include "ggml/cuda/copy.cuh"
#include "ggml/cuda/mma.cuh"
#include "ggml/cuda/numbers.cuh"
#include "ggml/top-keys/cuda/select.cuh"

#include <algorithm>

constexpr int     BLOCK         = 32;  // numbers, of Q4_0 too
constexpr int     BLOCK_BYTES   = 18;  // a scale in F16, then 16 bytes, byte i with the numbers i and 16 + i, plus 8
constexpr int     WORDS         = BLOCK/4;
constexpr int     MAX_HEAD_SIZE = 576;
constexpr int     GROUP         = 4;   // blocks that are multiplied at a time; to a multiple of it, numbers are 0
constexpr int     QUERIES       = 32;  // of two products, which share a key's numbers
constexpr int     WARPS         = 4;
constexpr int     THREADS       = WARPS*WARP_SIZE;
constexpr int     WARP_KEYS     = 32;
constexpr int     KEYS          = WARPS*WARP_KEYS;
constexpr int     MAX_SAMPLE    = 256; // rows by which a query's logits are judged
constexpr int     MIN_BLOCKS    = 1024; // of scores, if there are tiles enough
constexpr int64_t MAX_SCORES    = 8*1024*1024; // at once, unless one tile of each KV head has more

static constexpr __host__ __device__ int groups_of(int d) {
    return (d/BLOCK + GROUP - 1)/GROUP;
}

struct top_keys_args {
    int d, n_q, n_k, n_head_kv, group, n_top, n_excluded, tile, offset, n_tiles;

    const char * q; // strides in bytes
    int64_t      q_stride, q_head_stride;
    const char * k;
    int64_t      k_stride, k_head_stride;

    const int32_t * excluded; // or NULL
    int64_t         excluded_stride; // in numbers
    int32_t       * top;

    // [n_head_kv] of each
    int         * queries;  // [n_q][groups][GROUP][WORDS]: bytes, -127 to 127
    float       * factors;  // [n_q] of scores; NaN: the query does not count
    float       * offsets;  // [n_q] of scores, before these factors

    // of tiles [first_tile, first_tile + n_round)
    int     first_tile, n_round;
    float * scores; // [n_round][n_k]
};

// Bytes of a query, and in shared memory: the banks of 8 rows differ.
static constexpr __host__ __device__ int query_size(int d)   { return groups_of(d)*GROUP*BLOCK; }
static constexpr __host__ __device__ int query_stride(int d) { return query_size(d) + 16; }

// of k_score, in bytes: a key's 16 bytes and scale of each block, and queries, while the next ones come
static constexpr size_t shared_size(int d) {
    return groups_of(d)*GROUP*KEYS*5*sizeof(int) + 2*QUERIES*query_stride(d);
}

// blockIdx: query, KV head; a warp
static __global__ void __launch_bounds__(WARP_SIZE) k_round_queries(const top_keys_args a) {
    const int i    = blockIdx.x;
    const int h    = blockIdx.y;
    const int lane = threadIdx.x;

    const int64_t query = (int64_t) h*a.n_q + i;

    const auto sum_of = [&](int j) {
        float sum = 0.0f;
        for (int head = h*a.group; head < (h + 1)*a.group; ++head) {
            sum += ((const float *) (a.q + i*a.q_stride + head*a.q_head_stride))[j];
        }
        return sum;
    };

    float peak      = 0.0f;
    bool  is_finite = true;
    for (int j = lane; j < a.d; j += WARP_SIZE) {
        const float x = sum_of(j);
        peak      = fmaxf(peak, fabsf(x));
        is_finite = is_finite && h2o_is_finite(x);
    }
#pragma unroll
    for (int offset = WARP_SIZE/2; offset > 0; offset /= 2) {
        peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, offset, WARP_SIZE));
    }
    const bool counts = __ballot_sync(0xffffffff, !is_finite) == 0 && peak > 0.0f;

    int8_t * dst = (int8_t *) a.queries + query*query_size(a.d);
    for (int j = lane; j < query_size(a.d); j += WARP_SIZE) {
        // as CPUs round, whatever -use_fast_math says
        dst[j] = counts && j < a.d ? (int8_t) rintf(__fmul_rn(__fdiv_rn(sum_of(j), peak), 127.0f)) : 0;
    }
    if (lane == 0) {
        a.factors[query] = counts ? __fdiv_rn(peak, 127.0f) : NAN;
        a.offsets[query] = 0.0f;
    }
}

// 8 less for each of 4 bytes, 0 to 15
static __device__ __forceinline__ int less_8(int x) {
    return ((x | 0x80808080) - 0x08080808) ^ 0x80808080;
}

// The sum of 4 products of bytes, from -127 to 127.
static __device__ __forceinline__ int dot_bytes(int x, int y) {
    int sum = 0;
#pragma unroll
    for (int shift = 0; shift < 32; shift += 8) {
        sum += (int8_t) (x >> shift)*(int8_t) (y >> shift);
    }
    return sum;
}

// The 90th percentile of a query's logits over a sample. Each thread has a row of it.
// blockIdx: query, KV head
static __global__ void __launch_bounds__(MAX_SAMPLE) k_offsets(const top_keys_args a) {
    __shared__ float logits[MAX_SAMPLE];

    const int64_t query = (int64_t) blockIdx.y*a.n_q + blockIdx.x;
    const int     n     = min(a.n_k, MAX_SAMPLE);
    const int     j     = threadIdx.x;

    float logit = NAN;
    if (j < n) {
        const int  * x   = a.queries + query*query_size(a.d)/(int) sizeof(int);
        const char * key = a.k + (int64_t) j*(a.n_k/n)*a.k_stride + blockIdx.y*a.k_head_stride;

        logit = 0.0f;
        for (int b = 0; b < a.d/BLOCK; ++b, x += WORDS, key += BLOCK_BYTES) {
            const uint16_t * block = (const uint16_t *) key;

            int sum = 0;
            for (int w = 0; w < 4; ++w) {
                const int y = (int) (block[1 + 2*w] | (uint32_t) block[2 + 2*w] << 16);
                sum += dot_bytes(less_8(y & 0x0f0f0f0f), x[w]) + dot_bytes(less_8(y >> 4 & 0x0f0f0f0f), x[4 + w]);
            }
            logit += (float) *(const half *) key*(float) sum;
        }
    }
    logits[j] = logit;
    __syncthreads();

    int n_before = 0;
    for (int i = 0; i < n; ++i) {
        n_before += logits[i] > logit || (logits[i] == logit && i < j);
    }
    if (n_before == (n + 9)/10 - 1 && h2o_is_finite(logit)) {
        a.offsets[query] = logit;
    }
}

// Products of the tiles' queries with some keys, of each key and tile the highest.
// blockIdx: keys, KV head, share of the round's tiles
static __global__ void __launch_bounds__(THREADS, 4) k_score(const top_keys_args a) {
    constexpr int N = WARP_KEYS/8;

    const int lane     = threadIdx.x%WARP_SIZE;
    const int warp_key = threadIdx.x/WARP_SIZE*WARP_KEYS;
    const int key      = blockIdx.x*KEYS;
    const int h        = blockIdx.y;
    const int n_groups = groups_of(a.d);
    const int n_blocks = n_groups*GROUP;
    const int n_bytes  = query_size(a.d);
    const int stride   = query_stride(a.d);
    const int n_keys   = min(KEYS, a.n_k - key);
    const int end_tile = a.first_tile + a.n_round;

    H2O_DYNAMIC_SHARED(memory);
    int4        * numbers = (int4 *) memory; // [KEYS][n_groups][4]: a word of each block
    float4      * scales  = (float4 *) (numbers + KEYS*n_groups*4); // [KEYS][n_groups]; NaN: no key
    char        * queries = (char *) (scales + KEYS*n_groups);
    char        * next    = queries + QUERIES*stride;

    const auto first_of = [&](int tile) { return (int) max((int64_t) tile*a.tile - a.offset, (int64_t) 0); };
    const auto end_of   = [&](int tile) { return (int) min((int64_t) (tile + 1)*a.tile - a.offset, (int64_t) a.n_q); };

    const auto load_queries = [&](int start, int end, char * to) {
        const char * from = (const char *) a.queries + ((int64_t) h*a.n_q + start)*n_bytes;
        for (int i = threadIdx.x*16; i < QUERIES*n_bytes; i += THREADS*16) {
            const int  r       = i/n_bytes;
            const bool is_read = start + r < end;
            h2o_copy_async(to + r*stride + i%n_bytes, from + (is_read ? i : 0), is_read);
        }
    };

    int tile  = a.first_tile + blockIdx.z;
    int start = first_of(tile);
    load_queries(start, end_of(tile), queries);

    for (int i = threadIdx.x; i < KEYS*n_blocks; i += THREADS) {
        const int j  = i/n_blocks;
        const int b  = i%n_blocks;
        const int at = j*n_groups + b/GROUP;

        const bool       is_read = b*BLOCK < a.d;
        const int64_t    row     = key + min(j, n_keys - 1);
        const uint16_t * src     = (const uint16_t *) (a.k + row*a.k_stride + h*a.k_head_stride + b*BLOCK_BYTES);
        for (int w = 0; w < 4; ++w) {
            ((int *) (numbers + at*4 + w))[b%GROUP] = is_read ? (int) (src[1 + 2*w] | (uint32_t) src[2 + 2*w] << 16) : 0;
        }
        ((float *) (scales + at))[b%GROUP] = j >= n_keys ? NAN : is_read ? (float) *(const half *) src : 0.0f;
    }

    float highest[N][2];
#pragma unroll
    for (int n = 0; n < N; ++n) {
        highest[n][0] = highest[n][1] = -INFINITY;
    }

    while (tile < end_tile) {
        const int  end     = end_of(tile);
        const bool is_last = start + QUERIES >= end; // of the tile

        const int next_tile  = is_last ? tile + gridDim.z : tile;
        const int next_start = is_last ? first_of(next_tile) : start + QUERIES;

        h2o_wait_for_copies();
        __syncthreads(); // these queries are there, the last ones were read
        if (next_tile < end_tile) {
            load_queries(next_start, end_of(next_tile), next);
        }

        float factors[QUERIES/8], offsets[QUERIES/8];
#pragma unroll
        for (int r = 0; r < QUERIES/8; ++r) {
            const int i = start + lane/4 + r*8;
            factors[r] = i < end ? a.factors[(int64_t) h*a.n_q + i] : NAN;
            offsets[r] = i < end ? a.offsets[(int64_t) h*a.n_q + i] : 0.0f;
        }

        int x[GROUP][QUERIES/16][4];
        const auto set_queries = [&](int g) {
#pragma unroll
            for (int b = 0; b < GROUP; ++b) {
#pragma unroll
                for (int p = 0; p < QUERIES/16; ++p) {
                    const int * upper = (const int *) (queries + (lane/4 + p*16)*stride) + (g*GROUP + b)*WORDS;
                    const int * lower = (const int *) (queries + (lane/4 + p*16 + 8)*stride) + (g*GROUP + b)*WORDS;

                    x[b][p][0] = upper[lane%4];
                    x[b][p][1] = lower[lane%4];
                    x[b][p][2] = upper[lane%4 + 4];
                    x[b][p][3] = lower[lane%4 + 4];
                }
            }
        };
        set_queries(0);
#pragma unroll
        for (int n = 0; n < N; ++n) {
            float sums[QUERIES/16][4] = {};
#pragma unroll 1
            for (int g = 0; g < n_groups; ++g) {
                if (n_groups > 1) {
                    set_queries(g);
                }
                const int    at   = (warp_key + n*8)*n_groups + g;
                const int4   y4   = numbers[(at + lane/4*n_groups)*4 + lane%4];
                const float4 f4[2] = { scales[at + lane%4*2*n_groups], scales[at + (lane%4*2 + 1)*n_groups] };
                const int    y[GROUP]    = { y4.x, y4.y, y4.z, y4.w };
                const float  f[GROUP][2] = { { f4[0].x, f4[1].x }, { f4[0].y, f4[1].y }, { f4[0].z, f4[1].z },
                    { f4[0].w, f4[1].w } };
#pragma unroll
                for (int b = 0; b < GROUP; ++b) {
                    const int low  = less_8(y[b] & 0x0f0f0f0f);
                    const int high = less_8(y[b] >> 4 & 0x0f0f0f0f);
#pragma unroll
                    for (int p = 0; p < QUERIES/16; ++p) {
                        float c[4];
                        h2o_mma_bytes(c, x[b][p], low, high);
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            sums[p][i] += f[b][i%2]*c[i];
                        }
                    }
                }
            }
#pragma unroll
            for (int p = 0; p < QUERIES/16; ++p) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    highest[n][i%2] = fmaxf(highest[n][i%2], (sums[p][i] - offsets[2*p + i/2])*factors[2*p + i/2]);
                }
            }
        }

        if (is_last) {
            float * scores = a.scores + ((int64_t) h*a.n_round + tile - a.first_tile)*a.n_k + key;
#pragma unroll
            for (int n = 0; n < N; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float x = highest[n][e];
                    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 4,  WARP_SIZE));
                    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 8,  WARP_SIZE));
                    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 16, WARP_SIZE));
                    highest[n][e] = -INFINITY;

                    const int j = warp_key + n*8 + lane%4*2 + e;
                    if (lane < 4 && j < n_keys) {
                        scores[j] = x;
                    }
                }
            }
        }
        tile  = next_tile;
        start = next_start;

        char * done = queries;
        queries = next;
        next    = done;
    }
}

// blockIdx: tile, KV head
static __global__ void __launch_bounds__(H2O_SELECT_THREADS) k_select(const top_keys_args a) {
    __shared__ h2o_select_scratch s;

    const int h = blockIdx.y;

    float   * scores = a.scores + ((int64_t) h*a.n_round + blockIdx.x)*a.n_k;
    int32_t * top    = a.top + ((int64_t) h*a.n_tiles + a.first_tile + blockIdx.x)*a.n_top;

    for (int i = threadIdx.x; i < a.n_excluded; i += H2O_SELECT_THREADS) {
        const int row = a.excluded[h*a.excluded_stride + i];
        if (row >= 0 && row < a.n_k) {
            scores[row] = NAN;
        }
    }
    __syncthreads();

    const int n = h2o_select(scores, a.n_k, a.n_top, top, s);
    for (int j = n + threadIdx.x; j < a.n_top; j += H2O_SELECT_THREADS) {
        top[j] = -1;
    }
}

bool ggml_cuda_h2o_top_keys_supported(int device, const ggml_tensor * dst) {
    const int cc = ggml_cuda_info().devices[device].cc;

    return GGML_CUDA_CC_IS_NVIDIA(cc) && cc >= GGML_CUDA_CC_AMPERE && dst->src[1]->type == GGML_TYPE_Q4_0 &&
            dst->src[1]->ne[2] <= UINT16_MAX &&
            dst->src[0]->ne[0] <= MAX_HEAD_SIZE;
}

void ggml_cuda_op_h2o_top_keys(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * q     = dst->src[0];
    const ggml_tensor * k     = dst->src[1];
    const ggml_tensor * excluded = dst->src[2];

    top_keys_args a = {};
    a.d             = (int) q->ne[0];
    a.n_q           = (int) q->ne[1];
    a.n_k           = (int) k->ne[1];
    a.n_head_kv     = (int) k->ne[2];
    a.group         = (int) q->ne[2]/a.n_head_kv;
    a.n_top         = (int) dst->ne[0];
    a.n_tiles       = (int) dst->ne[1];
    a.tile          = ggml_get_op_params_i32(dst, 0);
    a.offset        = ggml_get_op_params_i32(dst, 1);
    a.q             = (const char *) q->data;
    a.q_stride      = q->nb[1];
    a.q_head_stride = q->nb[2];
    a.k             = (const char *) k->data;
    a.k_stride      = k->nb[1];
    a.k_head_stride = k->nb[2];
    a.top           = (int32_t *) dst->data;
    if (excluded) {
        a.excluded        = (const int32_t *) excluded->data;
        a.excluded_stride = excluded->nb[1]/sizeof(int32_t);
        a.n_excluded      = (int) excluded->ne[0];
    }

    const int64_t n_queries   = (int64_t) a.n_head_kv*a.n_q;
    const int64_t tile_scores = (int64_t) a.n_head_kv*a.n_k;
    const int64_t max_round   = std::clamp<int64_t>(MAX_SCORES/tile_scores, 1, std::min<int64_t>(a.n_tiles,
            UINT16_MAX));
    const size_t  shared      = shared_size(a.d);

    ggml_cuda_pool_alloc<int>         queries (ctx.pool(), n_queries*query_size(a.d)/sizeof(int));
    ggml_cuda_pool_alloc<float>       factors (ctx.pool(), n_queries);
    ggml_cuda_pool_alloc<float>       offsets (ctx.pool(), n_queries);
    ggml_cuda_pool_alloc<float>       scores  (ctx.pool(), max_round*tile_scores);

    a.queries  = queries.get();
    a.factors  = factors.get();
    a.offsets  = offsets.get();
    a.scores   = scores.get();

    cudaStream_t stream = ctx.stream();

    CUDA_SET_SHARED_MEMORY_LIMIT(k_score, shared_size(MAX_HEAD_SIZE));

    h2o_launch(k_round_queries, dim3(a.n_q, a.n_head_kv), WARP_SIZE, 0, stream, a);
    if (a.tile > 1 && a.n_q > 1) { // an offset changes no order among a single query's logits
        h2o_launch(k_offsets, dim3(a.n_q, a.n_head_kv), MAX_SAMPLE, 0, stream, a);
    }

    for (a.first_tile = 0; a.first_tile < a.n_tiles; a.first_tile += a.n_round) {
        a.n_round = (int) std::min<int64_t>(max_round, a.n_tiles - a.first_tile);

        const int n_blocks_of_keys = (a.n_k + KEYS - 1)/KEYS*a.n_head_kv;
        const int n_shares         = std::clamp(MIN_BLOCKS/n_blocks_of_keys, 1, a.n_round);

        const dim3 grid((a.n_k + KEYS - 1)/KEYS, a.n_head_kv, n_shares);
        h2o_launch(k_score, grid, THREADS, shared, stream, a);
        h2o_launch(k_select, dim3(a.n_round, a.n_head_kv), H2O_SELECT_THREADS, 0, stream, a);
    }
}
