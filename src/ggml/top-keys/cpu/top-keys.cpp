#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ops.h"

#include "ggml/top-keys/kernels/kernels.h"
#include "ggml/work.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

constexpr int64_t UNIT_KEYS  = 512;          // that are packed at once
constexpr int64_t MAX_PACKED = 32*1024*1024; // bytes of packed keys, unless one KV head takes more
constexpr int64_t CANDIDATES = 8;            // for each row that is chosen

// a thread's scratch
struct index_scratch {
    h2o_index_query * q;         // [H2O_INDEX_QUERIES][n_blocks], with few queries [n_head_kv][n_q][n_blocks]
    bool            * is_finite; // of each of them
    float           * scores;    // [H2O_INDEX_QUERIES][n_k_pad], with many queries
    char            * panels;    // of a unit, with few queries
    float           * values;    // of what is selected from, or a sum of queries
    int32_t         * rows;      // of it

    // to weigh candidates for all heads of a group
    int32_t         * candidates;
    char            * candidate_panels;
    h2o_index_query * heads;     // [group][n_blocks]
    float           * factors;   // [group]
    float           * logits;    // [group][n_candidates_pad]
    float           * weights;   // [n_candidates_pad]
};

// With many queries, a KV head's keys are packed once, and blocks of queries are the items of work: a block's scores with all
// keys stay in the L2 cache unless keys are many. KV heads are computed in rounds, which share the room for packed keys.
//
// With few, an item is a unit of keys, packed and scored by one thread. The choices follow, one for each query and KV head.
//
// A query's scores are the same either way, with any number of threads and whatever queries stand beside it.
struct top_keys {
    top_keys(const ggml_tensor * dst, int n_threads);

    size_t size; // of the work buffer

    void compute(const ggml_compute_params * params) const;

private:
    const h2o_index_kernel & kernel;

    const ggml_tensor * q;
    const ggml_tensor * k;
    const ggml_tensor * taken; // or NULL
    int32_t           * top;

    float scale;

    int64_t d, n_q, n_k, n_head_kv, group, n_top;

    int64_t n_candidates; // n_top if heads are not weighed

    int64_t n_blocks;  // of a key
    int64_t n_k_pad;   // whole panels
    int64_t unit_size; // bytes
    int64_t n_units;   // of a KV head
    int64_t n_items;   // of a KV head: blocks of queries
    int64_t n_round;   // KV heads at once
    bool    is_few;

    size_t off_scores, off_thread, thread_size; // in the work buffer, after packed keys

    char  * panels_of(char * work, int64_t h) const { return work + h%n_round*n_units*unit_size; }
    float * scores_of(char * work, int64_t h) const { return (float *) (work + off_scores) + h*n_q*n_k_pad; }

    index_scratch get_scratch(h2o_take & take) const;
    index_scratch thread_scratch(char * work, int ith) const;

    int64_t unit_keys  (int64_t unit) const { return std::min(UNIT_KEYS, n_k - unit*UNIT_KEYS); }
    int64_t unit_panels(int64_t unit) const { return h2o_ceil_div(unit_keys(unit), kernel.n_lanes); }

    template <typename F>
    void for_taken(int64_t h, const F & f) const;

    void pack(int64_t h, int64_t unit, char * panels) const;
    void mark_taken(int64_t h, char * panels) const;
    void quantize(int64_t h, int64_t first, int64_t n, int64_t place, const index_scratch & scratch) const;
    bool quantize_query(int64_t head, int64_t n_heads, int64_t i, h2o_index_query * dst, float * sum, float * peak) const;
    bool select_by_weight(int64_t h, int64_t i, const float * scores, const index_scratch & scratch) const;
    void select(int64_t h, int64_t i, bool is_finite, float * scores, const index_scratch & scratch) const;
    void select_with_nan(int64_t h, const float * scores, int64_t n_found, char * is_taken, int32_t * dst) const;

    void compute_few (const ggml_compute_params * params, char * work) const;
    void compute_many(const ggml_compute_params * params, char * work) const;
};

top_keys::top_keys(const ggml_tensor * dst, int n_threads)
    : kernel(h2o_index_kernel_in_use()), q(dst->src[0]), k(dst->src[1]), taken(dst->src[2]), top((int32_t *) dst->data) {
    d         = q->ne[0];
    n_q       = q->ne[1];
    n_k       = k->ne[1];
    n_head_kv = k->ne[2];
    group     = q->ne[2]/n_head_kv;
    n_top     = dst->ne[0];

    memcpy(&scale, dst->op_params, sizeof(scale));
    n_candidates = scale > 0.0f && group > 1 ? std::min(CANDIDATES*n_top, n_k) : n_top;

    n_blocks  = d/H2O_INDEX_BLOCK;
    n_k_pad   = h2o_ceil_div(n_k, kernel.n_lanes)*kernel.n_lanes;
    unit_size = UNIT_KEYS/kernel.n_lanes*h2o_index_panel_size(kernel.n_lanes, d);
    n_units   = h2o_ceil_div(n_k, UNIT_KEYS);
    n_items   = h2o_ceil_div(n_q, H2O_INDEX_QUERIES);
    is_few    = n_items == 1;

    // at least one item for each thread
    n_round = std::max(MAX_PACKED/(n_units*unit_size), h2o_ceil_div(n_threads, n_items));
    n_round = std::min(n_round, n_head_kv);

    h2o_take take { nullptr };
    take.get<char>(is_few ? 0 : n_round*n_units*unit_size);
    off_scores = take.size;
    take.get<float>(is_few ? n_head_kv*n_q*n_k_pad : 0);
    off_thread = take.size;
    get_scratch(take);
    thread_size = take.size - off_thread;
    size        = off_thread + n_threads*thread_size;
}

index_scratch top_keys::get_scratch(h2o_take & take) const {
    const int64_t n_quantized = is_few ? n_head_kv*n_q : H2O_INDEX_QUERIES;

    index_scratch s;
    s.q         = take.get<h2o_index_query>(n_quantized*n_blocks);
    s.is_finite = take.get<bool>(n_quantized);
    s.scores    = take.get<float>(is_few ? 0 : H2O_INDEX_QUERIES*n_k_pad);
    s.panels    = take.get<char>(is_few ? unit_size : 0);
    s.values    = take.get<float>(std::max(n_k_pad + kernel.n_lanes, d));
    s.rows      = take.get<int32_t>(n_k_pad + kernel.n_lanes);

    if (n_candidates > n_top) {
        const int64_t n_panels = h2o_ceil_div(n_candidates, kernel.n_lanes);

        s.candidates       = take.get<int32_t>(n_candidates);
        s.candidate_panels = take.get<char>(n_panels*h2o_index_panel_size(kernel.n_lanes, d));
        s.heads            = take.get<h2o_index_query>(group*n_blocks);
        s.factors          = take.get<float>(group);
        s.logits           = take.get<float>(group*n_panels*kernel.n_lanes);
        s.weights          = take.get<float>(n_panels*kernel.n_lanes);
    }
    return s;
}

index_scratch top_keys::thread_scratch(char * work, int ith) const {
    h2o_take take { work + off_thread + ith*thread_size };
    return get_scratch(take);
}

void top_keys::pack(int64_t h, int64_t unit, char * panels) const {
    const int64_t first = unit*UNIT_KEYS;
    kernel.pack((const char *) k->data + first*k->nb[1] + h*k->nb[2], k->nb[1], nullptr, unit_keys(unit), d, panels);
}

// f(row) for rows of a KV head that are taken
template <typename F>
void top_keys::for_taken(int64_t h, const F & f) const {
    if (taken) {
        const int32_t * rows = (const int32_t *) ((const char *) taken->data + h*taken->nb[1]);
        for (int64_t i = 0; i < taken->ne[0]; ++i) {
            if (rows[i] >= 0 && rows[i] < n_k) {
                f(rows[i]);
            }
        }
    }
}

// They score NaN.
void top_keys::mark_taken(int64_t h, char * panels) const {
    const int64_t panel_size = h2o_index_panel_size(kernel.n_lanes, d);

    for_taken(h, [&](int32_t row) {
        float * scales = (float *) (panels + row/kernel.n_lanes*panel_size);
        scales[row%kernel.n_lanes] = NAN;
    });
}

// The i-th query in 8 bits, summed over heads. Returns whether all sums are finite.
bool top_keys::quantize_query(int64_t head, int64_t n_heads, int64_t i, h2o_index_query * dst, float * sum, float * largest) const {
    const auto query = [&](int64_t head) { return (const float *) ((const char *) q->data + i*q->nb[1] + head*q->nb[2]); };

    memcpy(sum, query(head), d*sizeof(float));
    for (int64_t other = head + 1; other < head + n_heads; ++other) {
        for (int64_t j = 0; j < d; ++j) {
            sum[j] += query(other)[j];
        }
    }

    float peak  = 0.0f;
    float zeros = 0.0f; // NaN if something is not finite
    for (int64_t j = 0; j < d; ++j) {
        peak   = std::max(peak, std::fabs(sum[j]));
        zeros += sum[j]*0.0f;
    }
    *largest = peak;
    const bool is_finite = zeros == 0.0f;

    for (int64_t b = 0; b < n_blocks; ++b) {
        const float * x = sum + b*H2O_INDEX_BLOCK;

        dst[b].offset = 0;
        for (int j = 0; j < H2O_INDEX_BLOCK; ++j) {
            dst[b].x[j] = is_finite && peak > 0.0f ? (int8_t) std::nearbyint(x[j]/peak*127.0f) : 0;
            dst[b].offset -= 8*dst[b].x[j];
        }
    }

    return is_finite;
}

// n queries from the first on, to the place-th and so on of the scratch
void top_keys::quantize(int64_t h, int64_t first, int64_t n, int64_t place, const index_scratch & scratch) const {
    for (int64_t i = 0; i < n; ++i) {
        float peak;
        scratch.is_finite[place + i] = quantize_query(h*group, group, first + i, scratch.q + (place + i)*n_blocks, scratch.values, &peak);
    }
}

// The rows to which the group's heads give most, of candidates by the sum of their queries. False if that cannot be told.
bool top_keys::select_by_weight(int64_t h, int64_t i, const float * scores, const index_scratch & scratch) const {
    const int64_t n = kernel.select(scores, n_k_pad, n_candidates, scratch.values, scratch.rows, scratch.candidates);
    if (n <= n_top) {
        return false;
    }
    const int64_t n_panels = h2o_ceil_div(n, kernel.n_lanes);
    const int64_t n_pad    = n_panels*kernel.n_lanes;

    for (int64_t g = 0; g < group; ++g) {
        float peak;
        quantize_query(h*group + g, 1, i, scratch.heads + g*n_blocks, scratch.values, &peak);
        scratch.factors[g] = peak/127.0f*scale;
    }

    kernel.pack((const char *) k->data + h*k->nb[2], k->nb[1], scratch.candidates, n, d, scratch.candidate_panels);
    for (int64_t g = 0; g < group; g += H2O_INDEX_QUERIES) {
        kernel.score(scratch.candidate_panels, n_panels, d, scratch.heads + g*n_blocks, std::min<int64_t>(H2O_INDEX_QUERIES, group - g),
            scratch.logits + g*n_pad, n_pad);
    }
    kernel.weigh(scratch.logits, n_pad, scratch.factors, group, n_pad, scratch.weights);

    int32_t * dst = top + (h*n_q + i)*n_top;
    if (kernel.select(scratch.weights, n_pad, n_top, scratch.values, scratch.rows, dst) < n_top) {
        return false;
    }
    for (int64_t j = 0; j < n_top; ++j) {
        dst[j] = scratch.candidates[dst[j]];
    }
    return true;
}

void top_keys::select(int64_t h, int64_t i, bool is_finite, float * scores, const index_scratch & scratch) const {
    int32_t * dst = top + (h*n_q + i)*n_top;

    if (!is_finite) {
        std::fill(scores, scores + n_k_pad, NAN);
    }

    if (n_candidates > n_top && select_by_weight(h, i, scores, scratch)) {
        return;
    }
    const int64_t n = kernel.select(scores, n_k_pad, n_top, scratch.values, scratch.rows, dst);
    if (n < n_top) {
        select_with_nan(h, scores, n, (char *) scratch.rows, dst);
    }
}

// All n_found rows that do not score NaN, and of those that do the first ones that are not taken.
void top_keys::select_with_nan(int64_t h, const float * scores, int64_t n_found, char * is_taken, int32_t * dst) const {
    std::fill(is_taken, is_taken + n_k, 0);

    for_taken(h, [&](int32_t row) { is_taken[row] = 1; });

    int64_t n     = 0;
    int64_t n_nan = n_top - n_found;
    for (int64_t row = 0; row < n_k && n < n_top; ++row) {
        if (!std::isnan(scores[row])) {
            dst[n++] = (int32_t) row;
        } else if (n_nan > 0 && !is_taken[row]) {
            dst[n++] = (int32_t) row;
            --n_nan;
        }
    }
    std::fill(dst + n, dst + n_top, -1);
}

void top_keys::compute_few(const ggml_compute_params * params, char * work) const {
    const index_scratch scratch = thread_scratch(work, params->ith);

    // by every thread: that takes less than to wait for the others
    for (int64_t h = 0; h < n_head_kv; ++h) {
        quantize(h, 0, n_q, h*n_q, scratch);
    }

    // the heads of a row stand together in the cache
    const int64_t n   = n_units*n_head_kv;
    const int64_t end = (params->ith + 1)*n/params->nth;
    for (int64_t item = params->ith*n/params->nth; item < end; ++item) {
        const int64_t unit = item/n_head_kv;
        const int64_t h    = item%n_head_kv;

        pack(h, unit, scratch.panels);
        kernel.score(scratch.panels, unit_panels(unit), d, scratch.q + h*n_q*n_blocks, n_q, scores_of(work, h) + unit*UNIT_KEYS, n_k_pad);
    }

    ggml_barrier(params->threadpool);

    for (int64_t item = params->ith; item < n_head_kv*n_q; item += params->nth) {
        const int64_t h = item/n_q;
        const int64_t i = item%n_q;

        float * scores = scores_of(work, h) + i*n_k_pad;
        for_taken(h, [&](int32_t row) { scores[row] = NAN; });
        select(h, i, scratch.is_finite[item], scores, scratch);
    }
}

void top_keys::compute_many(const ggml_compute_params * params, char * work) const {
    const index_scratch scratch = thread_scratch(work, params->ith);

    for (int64_t first = 0; first < n_head_kv; first += n_round) {
        const int64_t n = std::min(n_round, n_head_kv - first);

        if (params->ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, params->nth);
        }

        // the heads of a row stand together in the cache
        for (int64_t i = params->ith; i < n*n_units; i += params->nth) {
            const int64_t h = first + i%n;
            pack(h, i/n, panels_of(work, h) + i/n*unit_size);
        }

        ggml_barrier(params->threadpool);

        for (int64_t i = params->ith; taken && i < n; i += params->nth) {
            mark_taken(first + i, panels_of(work, first + i));
        }
        if (taken) {
            ggml_barrier(params->threadpool);
        }

        for (int64_t item = params->ith; item < n*n_items; item = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            const int64_t h       = first + item/n_items;
            const int64_t start   = item%n_items*H2O_INDEX_QUERIES;
            const int64_t n_block = std::min<int64_t>(H2O_INDEX_QUERIES, n_q - start);

            quantize(h, start, n_block, 0, scratch);
            kernel.score(panels_of(work, h), n_k_pad/kernel.n_lanes, d, scratch.q, n_block, scratch.scores, n_k_pad);

            for (int64_t i = 0; i < n_block; ++i) {
                select(h, start + i, scratch.is_finite[i], scratch.scores + i*n_k_pad, scratch);
            }
        }

        ggml_barrier(params->threadpool);
    }
}

void top_keys::compute(const ggml_compute_params * params) const {
    GGML_ASSERT(size + 64 <= params->wsize && "planned for as many threads or more");

    char * work = (char *) GGML_PAD((uintptr_t) params->wdata, 64);

    if (is_few) {
        compute_few(params, work);
    } else {
        compute_many(params, work);
    }
}

} // namespace

size_t ggml_h2o_top_keys_work_size(const ggml_tensor * dst, int n_threads) {
    return top_keys(dst, n_threads).size + 64;
}

void ggml_compute_forward_h2o_top_keys(const ggml_compute_params * params, ggml_tensor * dst) {
    top_keys(dst, params->nth).compute(params);
}
