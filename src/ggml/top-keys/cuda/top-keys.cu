#include "ggml/top-keys/cuda/top-keys.cuh"

#include "ggml/top-keys/cuda/select.cuh"

#include <algorithm>

constexpr int     BLOCK         = 32;          // numbers, of Q4_0 too
constexpr int     BLOCK_BYTES   = 18;          // a scale in F16, then 16 bytes, byte i with the numbers i and 16 + i, each of them plus 8
constexpr int     SCORE_THREADS = 256;
constexpr int     SCORE_QUERIES = 8;           // that a thread scores with a key
constexpr int     CANDIDATES    = 8;           // for each row that is chosen
constexpr int64_t MAX_SCORES    = 8*1024*1024; // at once, unless one query of each KV head has more

// A block of a query in 8 bits, -127 to 127.
struct query_block {
    int x[BLOCK/4];
    int offset; // -8 times their sum, for the 8 in each number of a key
};

struct top_keys_args {
    int d, n_q, n_k, n_head_kv, group, n_top, n_candidates, n_taken;

    const char * q; // strides in bytes
    int64_t      q_stride, q_head_stride;
    const char * k;
    int64_t      k_stride, k_head_stride;

    const int32_t * taken; // or NULL
    int64_t         taken_stride; // in numbers
    float           scale;
    int32_t       * top;

    // of queries summed over a group, then of each head of it: [1 + group][n_head_kv][n_q]
    query_block * queries; // with d/BLOCK blocks
    float       * peaks;   // NaN where something is not finite

    // of queries [first, first + n): [n_head_kv][n]
    int       first, n;
    float   * scores;     // of all keys
    int32_t * candidates; // [n_candidates]
    float   * logits;     // likewise
    float   * weights;    // likewise

    __device__ __forceinline__ int64_t query(int which, int h, int i) const { return ((int64_t) which*n_head_kv + h)*n_q + i; }
};

static __device__ __forceinline__ float dot(const char * key, const query_block * q, int n_blocks) {
    float res = 0.0f;
    for (int b = 0; b < n_blocks; ++b, key += BLOCK_BYTES) {
        const uint16_t * bytes = (const uint16_t *) key + 1;

        int sum = q[b].offset;
#pragma unroll
        for (int j = 0; j < BLOCK/8; ++j) {
            const uint32_t x = bytes[2*j] | (uint32_t) bytes[2*j + 1] << 16;
            sum = __dp4a((int) (x      & 0x0f0f0f0f), q[b].x[j],           sum);
            sum = __dp4a((int) (x >> 4 & 0x0f0f0f0f), q[b].x[j + BLOCK/8], sum);
        }
        res += (float) *(const half *) key*(float) sum;
    }
    return res;
}

// blockIdx: query, KV head, which of its queries; a warp
static __global__ void __launch_bounds__(WARP_SIZE) k_round_queries(const top_keys_args a) {
    const int i     = blockIdx.x;
    const int h     = blockIdx.y;
    const int which = blockIdx.z;
    const int lane  = threadIdx.x;

    const int head   = h*a.group + (which == 0 ? 0 : which - 1);
    const int n_sums = which == 0 ? a.group : 1;

    const auto sum_of = [&](int j) {
        const char * src = a.q + i*a.q_stride + head*a.q_head_stride;
        float sum = ((const float *) src)[j];
        for (int other = 1; other < n_sums; ++other) {
            sum += ((const float *) (src + other*a.q_head_stride))[j];
        }
        return sum;
    };

    float peak      = 0.0f;
    bool  is_finite = true;
    for (int j = lane; j < a.d; j += WARP_SIZE) {
        const float x = sum_of(j);
        peak      = fmaxf(peak, fabsf(x));
        is_finite = is_finite && x*0.0f == 0.0f;
    }
#pragma unroll
    for (int offset = WARP_SIZE/2; offset > 0; offset /= 2) {
        peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, offset, WARP_SIZE));
    }
    is_finite = __ballot_sync(0xffffffff, !is_finite) == 0;

    query_block * dst = a.queries + a.query(which, h, i)*(a.d/BLOCK);
    for (int b = 0; b < a.d/BLOCK; ++b) {
        // as CPUs round, whatever -use_fast_math says
        const float x       = sum_of(b*BLOCK + lane);
        const int   rounded = is_finite && peak > 0.0f ? (int) rintf(__fmul_rn(__fdiv_rn(x, peak), 127.0f)) : 0;

        int sum = rounded;
#pragma unroll
        for (int offset = WARP_SIZE/2; offset > 0; offset /= 2) {
            sum += __shfl_xor_sync(0xffffffff, sum, offset, WARP_SIZE);
        }
        ((int8_t *) dst[b].x)[lane] = (int8_t) rounded;
        if (lane == 0) {
            dst[b].offset = -8*sum;
        }
    }
    if (lane == 0) {
        a.peaks[a.query(which, h, i)] = is_finite ? peak : NAN;
    }
}

// blockIdx: keys, KV head, queries
static __global__ void __launch_bounds__(SCORE_THREADS) k_score(const top_keys_args a) {
    const int n_blocks = a.d/BLOCK;
    const int key      = blockIdx.x*SCORE_THREADS + threadIdx.x;
    const int h        = blockIdx.y;
    const int start    = blockIdx.z*SCORE_QUERIES;
    const int n        = min(SCORE_QUERIES, a.n - start);

    H2O_DYNAMIC_SHARED(memory);
    query_block * queries = (query_block *) memory;

    const int   n_words = (int) (n*n_blocks*sizeof(query_block)/sizeof(int));
    const int * words   = (const int *) (a.queries + a.query(0, h, a.first + start)*n_blocks);
    for (int i = threadIdx.x; i < n_words; i += SCORE_THREADS) {
        ((int *) queries)[i] = words[i];
    }
    __syncthreads();
    if (key >= a.n_k) {
        return;
    }
    const char * row = a.k + key*a.k_stride + h*a.k_head_stride;
    for (int i = 0; i < n; ++i) {
        const float peak = a.peaks[a.query(0, h, a.first + start + i)];
        a.scores[((int64_t) h*a.n + start + i)*a.n_k + key] = isnan(peak) ? NAN : dot(row, queries + i*n_blocks, n_blocks);
    }
}

// blockIdx: taken rows, KV head, query
static __global__ void __launch_bounds__(SCORE_THREADS) k_mark_taken(const top_keys_args a) {
    const int i = blockIdx.x*SCORE_THREADS + threadIdx.x;
    const int h = blockIdx.y;
    if (i >= a.n_taken) {
        return;
    }
    const int row = a.taken[h*a.taken_stride + i];
    if (row >= 0 && row < a.n_k) {
        for (int j = blockIdx.z; j < a.n; j += gridDim.z) {
            a.scores[((int64_t) h*a.n + j)*a.n_k + row] = __uint_as_float(H2O_TAKEN);
        }
    }
}

// What the group's heads give to n candidates, each head's softmax added up. False if a head's largest logit is not finite.
static __device__ bool weigh(const top_keys_args & a, int h, int i, int64_t place, int n, h2o_select_scratch & s) {
    const int n_blocks = a.d/BLOCK;

    const int32_t * candidates = a.candidates + place*a.n_candidates;
    float         * logits     = a.logits     + place*a.n_candidates;
    float         * weights    = a.weights    + place*a.n_candidates;

    for (int g = 0; g < a.group; ++g) {
        const int64_t query  = a.query(1 + g, h, i);
        const float   factor = a.peaks[query]/127.0f*a.scale;

        float max = -INFINITY;
        for (int c = threadIdx.x; c < n; c += H2O_SELECT_THREADS) {
            const float x = dot(a.k + candidates[c]*a.k_stride + h*a.k_head_stride, a.queries + query*n_blocks, n_blocks)*factor;
            logits[c] = x;
            max = fmaxf(max, x);
        }
        max = h2o_block_reduce(max, s, [](float x, float y) { return fmaxf(x, y); });
        if (!(max*0.0f == 0.0f)) {
            return false;
        }

        float sum = 0.0f;
        for (int c = threadIdx.x; c < n; c += H2O_SELECT_THREADS) {
            const float x = isnan(logits[c]) ? 0.0f : expf(logits[c] - max);
            logits[c] = x;
            sum += x;
        }
        sum = h2o_block_reduce(sum, s, [](float x, float y) { return x + y; });

        for (int c = threadIdx.x; c < n; c += H2O_SELECT_THREADS) {
            weights[c] = (g == 0 ? 0.0f : weights[c]) + logits[c]/sum;
        }
    }
    __syncthreads();
    return true;
}

// blockIdx: query, KV head
static __global__ void __launch_bounds__(H2O_SELECT_THREADS) k_select(const top_keys_args a) {
    __shared__ h2o_select_scratch s;

    const int     h      = blockIdx.y;
    const int     i      = a.first + blockIdx.x;
    const int64_t place  = (int64_t) h*a.n + blockIdx.x;
    const float * scores = a.scores + place*a.n_k;
    int32_t     * top    = a.top + ((int64_t) h*a.n_q + i)*a.n_top;

    if (a.n_candidates > a.n_top) {
        int32_t * candidates = a.candidates + place*a.n_candidates;

        const int n = h2o_select(scores, a.n_k, a.n_candidates, 2, candidates, s);
        if (n > a.n_top && weigh(a, h, i, place, n, s)) {
            h2o_select(a.weights + place*a.n_candidates, n, a.n_top, 2, top, s);
            for (int j = threadIdx.x; j < a.n_top; j += H2O_SELECT_THREADS) {
                top[j] = candidates[top[j]];
            }
            return;
        }
        __syncthreads();
    }
    const int n = h2o_select(scores, a.n_k, a.n_top, 1, top, s);
    for (int j = n + threadIdx.x; j < a.n_top; j += H2O_SELECT_THREADS) {
        top[j] = -1;
    }
}

bool ggml_cuda_h2o_top_keys_supported(int device, const ggml_tensor * dst) {
    const int cc = ggml_cuda_info().devices[device].cc;

    return GGML_CUDA_CC_IS_NVIDIA(cc) && cc >= GGML_CUDA_CC_AMPERE && dst->src[0]->ne[1] <= UINT16_MAX && dst->src[1]->ne[2] <= UINT16_MAX &&
        dst->src[0]->ne[0] <= 1024;
}

void ggml_cuda_op_h2o_top_keys(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * q     = dst->src[0];
    const ggml_tensor * k     = dst->src[1];
    const ggml_tensor * taken = dst->src[2];

    top_keys_args a = {};
    a.d             = (int) q->ne[0];
    a.n_q           = (int) q->ne[1];
    a.n_k           = (int) k->ne[1];
    a.n_head_kv     = (int) k->ne[2];
    a.group         = (int) q->ne[2]/a.n_head_kv;
    a.n_top         = (int) dst->ne[0];
    a.scale         = ggml_get_op_params_f32(dst, 0);
    a.n_candidates  = a.scale > 0.0f && a.group > 1 ? (int) std::min<int64_t>((int64_t) CANDIDATES*a.n_top, a.n_k) : a.n_top;
    a.q             = (const char *) q->data;
    a.q_stride      = q->nb[1];
    a.q_head_stride = q->nb[2];
    a.k             = (const char *) k->data;
    a.k_stride      = k->nb[1];
    a.k_head_stride = k->nb[2];
    a.top           = (int32_t *) dst->data;
    if (taken) {
        a.taken        = (const int32_t *) taken->data;
        a.taken_stride = taken->nb[1]/sizeof(int32_t);
        a.n_taken      = (int) taken->ne[0];
    }

    const bool    weighs   = a.n_candidates > a.n_top;
    const int     n_which  = 1 + (weighs ? a.group : 0);
    const int     n_blocks = a.d/BLOCK;
    const int64_t n_round  = std::max<int64_t>(std::min<int64_t>(a.n_q, MAX_SCORES/((int64_t) a.n_head_kv*a.n_k)), 1);
    const int64_t n_places = a.n_head_kv*n_round;

    ggml_cuda_pool_alloc<query_block> queries(ctx.pool(), (size_t) n_which*a.n_head_kv*a.n_q*n_blocks);
    ggml_cuda_pool_alloc<float>       peaks  (ctx.pool(), (size_t) n_which*a.n_head_kv*a.n_q);
    ggml_cuda_pool_alloc<float>       scores (ctx.pool(), n_places*a.n_k);
    ggml_cuda_pool_alloc<float>       of_candidates(ctx.pool());

    a.queries = queries.get();
    a.peaks   = peaks.get();
    a.scores  = scores.get();
    if (weighs) {
        const int64_t n = n_places*a.n_candidates;

        a.logits     = of_candidates.alloc(3*n);
        a.weights    = a.logits + n;
        a.candidates = (int32_t *) (a.logits + 2*n);
    }

    cudaStream_t stream = ctx.stream();

    h2o_launch(k_round_queries, dim3(a.n_q, a.n_head_kv, n_which), WARP_SIZE, 0, stream, a);

    for (a.first = 0; a.first < a.n_q; a.first += a.n) {
        a.n = (int) std::min<int64_t>(n_round, a.n_q - a.first);

        const int n_query_blocks = (a.n + SCORE_QUERIES - 1)/SCORE_QUERIES;

        h2o_launch(k_score, dim3((a.n_k + SCORE_THREADS - 1)/SCORE_THREADS, a.n_head_kv, n_query_blocks), SCORE_THREADS,
            SCORE_QUERIES*n_blocks*sizeof(query_block), stream, a);
        if (a.taken) {
            h2o_launch(k_mark_taken, dim3((a.n_taken + SCORE_THREADS - 1)/SCORE_THREADS, a.n_head_kv, n_query_blocks), SCORE_THREADS, 0, stream, a);
        }
        h2o_launch(k_select, dim3(a.n, a.n_head_kv), H2O_SELECT_THREADS, 0, stream, a);
    }
}
