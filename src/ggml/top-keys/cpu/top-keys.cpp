#include "ggml-cpu.h"
#include "ops.h"

#include "ggml/top-keys/kernels/kernels.h"
#include "ggml/work.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

constexpr int64_t BATCH_KEYS  = 256;          // their panels stay in the L1 cache while a tile's queries are multiplied
constexpr int64_t MAX_PACKED = 32*1024*1024; // bytes of packed keys, unless one KV head takes more
constexpr int64_t MIN_ITEMS  = 64;           // a prompt's tiles are as many with 2 KV heads
constexpr int64_t MAX_SAMPLE = 256;          // rows by which a query's logits are judged

// An item of work is a tile of one KV head: its score of each key, then the choice. With few tiles, an item has a range
// of keys, and all threads wait for each other in between. Keys are packed once for all tiles; KV heads are computed in
// rounds, which share the room for packed keys. Nothing depends on the number of threads.
struct top_keys {
    explicit top_keys(const ggml_tensor * dst);

    // all threads'; [n_head_kv] of each
    struct shared {
        h2o_index_query * q;       // [n_q][n_blocks]
        float           * factors; // [n_q] of scores; NaN: the query does not count
        float           * offsets; // [n_q] of scores, before these factors
        char            * panels;  // [n_round] of a KV head's keys
        float           * scores;  // [n_tiles][n_k_pad], with ranges
    };

    // a thread's
    struct scratch {
        float   * sum;    // of heads
        char    * panels; // of a batch
        char    * sample; // panels of a KV head's sample
        float   * scores; // [n_k_pad], without ranges
        float   * values; // to select from
        int32_t * rows;
    };

    shared  get_shared (h2o_take & arena) const;
    scratch get_scratch(h2o_take & arena) const;

    void compute(const ggml_compute_params * params, const shared & w, const scratch & s) const;

private:
    // some queries that choose together, of a KV head
    struct tile_queries {
        int64_t h;
        int64_t tile;
        int64_t first;
        int64_t n;
    };

    tile_queries get_tile(int64_t h, int64_t tile) const;

    int64_t batch_keys(int64_t batch) const { return std::min(BATCH_KEYS, n_k - batch*BATCH_KEYS); }

    void quantize(const shared & w, const scratch & s, int64_t h, int64_t i) const;
    float offset_of(const shared & w, const scratch & s, int64_t h, int64_t i) const;
    void pack    (int64_t h, int64_t batch, char * panels) const;
    void score   (const shared & w, const scratch & s, const tile_queries & t, int64_t range, float * scores) const;
    void select  (const scratch & s, const tile_queries & t, float * scores) const;

    float * scores_of(const shared & w,
            const tile_queries & t) const { return w.scores + (t.h*n_tiles + t.tile)*n_k_pad; }

    const h2o_index_kernel & kernel;

    const ggml_tensor * q;
    const ggml_tensor * k;
    const ggml_tensor * excluded; // or NULL
    int32_t           * top;

    int64_t d, n_q, n_k, n_head_kv, group, n_top, tile, offset, n_tiles;

    int64_t n_blocks;    // of a key
    int64_t n_k_pad;     // whole panels
    int64_t panel_size;  // bytes
    int64_t batch_size;   // bytes
    int64_t n_batches;     // of a KV head
    int64_t n_ranges;     // of these
    int64_t n_round;     // KV heads at once
    int64_t n_sample;    // 0: every tile has one query, whose offset changes no order
    bool    packs_once;  // for all tiles
};

top_keys::top_keys(const ggml_tensor * dst)
    : kernel(h2o_index_kernel_in_use()), q(dst->src[0]), k(dst->src[1]), excluded(dst->src[2]),
            top((int32_t *) dst->data) {
    d         = q->ne[0];
    n_q       = q->ne[1];
    n_k       = k->ne[1];
    n_head_kv = k->ne[2];
    group     = q->ne[2]/n_head_kv;
    n_top     = dst->ne[0];
    n_tiles   = dst->ne[1];
    tile      = ggml_get_op_params_i32(dst, 0);
    offset    = ggml_get_op_params_i32(dst, 1);

    n_blocks   = d/H2O_INDEX_BLOCK;
    n_k_pad    = h2o_ceil_div(n_k, kernel.n_lanes)*kernel.n_lanes;
    panel_size = h2o_index_panel_size(kernel.n_lanes, d);
    batch_size  = BATCH_KEYS/kernel.n_lanes*panel_size;
    n_batches    = h2o_ceil_div(n_k, BATCH_KEYS);
    packs_once = n_tiles > 1;
    n_round    = packs_once ? std::clamp<int64_t>(MAX_PACKED/(n_batches*batch_size), 1, n_head_kv) : n_head_kv;
    n_ranges    = std::min(h2o_ceil_div(MIN_ITEMS, n_round*n_tiles), n_batches);
    n_sample    = tile > 1 && n_q > 1 ? std::min(n_k, MAX_SAMPLE) : 0;
}

top_keys::shared top_keys::get_shared(h2o_take & arena) const {
    shared w;
    w.q       = arena.get<h2o_index_query>(n_head_kv*n_q*n_blocks);
    w.factors = arena.get<float>(n_head_kv*n_q);
    w.offsets = arena.get<float>(n_head_kv*n_q);
    w.panels  = arena.get<char>(packs_once ? n_round*n_batches*batch_size : 0);
    w.scores  = arena.get<float>(n_ranges > 1 ? n_head_kv*n_tiles*n_k_pad : 0);
    return w;
}

top_keys::scratch top_keys::get_scratch(h2o_take & arena) const {
    scratch s;
    s.sum    = arena.get<float>(d);
    s.panels = arena.get<char>(packs_once ? 0 : batch_size);
    s.sample = arena.get<char>(h2o_ceil_div(n_sample, kernel.n_lanes)*panel_size);
    s.scores = arena.get<float>(n_ranges > 1 ? 0 : n_k_pad);
    s.values = arena.get<float>(n_k_pad + kernel.n_lanes);
    s.rows   = arena.get<int32_t>(n_k_pad + kernel.n_lanes);
    return s;
}

top_keys::tile_queries top_keys::get_tile(int64_t h, int64_t i) const {
    const int64_t first = std::max<int64_t>(i*tile - offset, 0);

    return { h, i, first, std::min((i + 1)*tile - offset, n_q) - first };
}

// The i-th query in 8 bits, summed over the group's heads.
void top_keys::quantize(const shared & w, const scratch & s, int64_t h, int64_t i) const {
    std::fill_n(s.sum, d, 0.0f);
    for (int64_t head = h*group; head < (h + 1)*group; ++head) {
        const float * x = (const float *) ((const char *) q->data + i*q->nb[1] + head*q->nb[2]);
        for (int64_t j = 0; j < d; ++j) {
            s.sum[j] += x[j];
        }
    }

    float peak  = 0.0f;
    float zeros = 0.0f; // NaN if something is not finite
    for (int64_t j = 0; j < d; ++j) {
        peak   = std::max(peak, std::fabs(s.sum[j]));
        zeros += s.sum[j]*0.0f;
    }
    const bool counts = zeros == 0.0f && peak > 0.0f;

    w.factors[h*n_q + i] = counts ? peak/127.0f : NAN;

    h2o_index_query * dst = w.q + (h*n_q + i)*n_blocks;
    for (int64_t b = 0; b < n_blocks; ++b) {
        const float * x = s.sum + b*H2O_INDEX_BLOCK;

        dst[b].offset = 0;
        for (int j = 0; j < H2O_INDEX_BLOCK; ++j) {
            dst[b].x[j] = counts ? (int8_t) std::nearbyint(x[j]/peak*127.0f) : 0;
            dst[b].offset -= 8*dst[b].x[j];
        }
    }
}

// The 90th percentile of the query's logits over the sample, before they are multiplied by its factor.
float top_keys::offset_of(const shared & w, const scratch & s, int64_t h, int64_t i) const {
    const int64_t n_panels = h2o_ceil_div(n_sample, kernel.n_lanes);
    const float   zero = 0.0f, one = 1.0f;
    kernel.score(s.sample, n_panels, d, w.q + (h*n_q + i)*n_blocks, 1, &one, &zero, s.values);

    const float x = kernel.find(s.values, n_panels*kernel.n_lanes, h2o_ceil_div(n_sample, 10));
    return std::isfinite(x) ? x : 0.0f;
}

void top_keys::pack(int64_t h, int64_t batch, char * panels) const {
    const int64_t first = batch*BATCH_KEYS;

    kernel.pack((const char *) k->data + first*k->nb[1] + h*k->nb[2], k->nb[1], batch_keys(batch), d,
            k->type == GGML_TYPE_Q8_0, panels);
}

// scores of a range of keys
void top_keys::score(const shared & w, const scratch & s, const tile_queries & t, int64_t range, float * scores) const {
    for (int64_t batch = range*n_batches/n_ranges; batch < (range + 1)*n_batches/n_ranges; ++batch) {
        char * panels = packs_once ? w.panels + (t.h%n_round*n_batches + batch)*batch_size : s.panels;
        if (!packs_once) {
            pack(t.h, batch, panels);
        }
        kernel.score(panels, h2o_ceil_div(batch_keys(batch), kernel.n_lanes), d, w.q + (t.h*n_q + t.first)*n_blocks,
                t.n, w.factors + t.h*n_q + t.first, w.offsets + t.h*n_q + t.first, scores + batch*BATCH_KEYS);
    }
}

void top_keys::select(const scratch & s, const tile_queries & t, float * scores) const {
    int32_t * dst = top + (t.h*n_tiles + t.tile)*n_top;

    for (int64_t i = 0; excluded && i < excluded->ne[0]; ++i) {
        const int32_t row = ((const int32_t *) ((const char *) excluded->data + t.h*excluded->nb[1]))[i];
        if (row >= 0 && row < n_k) {
            scores[row] = NAN;
        }
    }
    std::fill(scores + n_k, scores + n_k_pad, NAN);

    const int64_t n = kernel.select(scores, n_k_pad, n_top, s.values, s.rows, dst);
    std::fill(dst + n, dst + n_top, -1);
}

void top_keys::compute(const ggml_compute_params * params, const shared & w, const scratch & s) const {
    const int ith = params->ith;
    const int nth = params->nth;

    int64_t sampled = -1;
    for (int64_t i = ith; i < n_head_kv*n_q; i += nth) {
        const int64_t h = i/n_q;
        quantize(w, s, h, i%n_q);

        if (n_sample > 0 && h != sampled) {
            kernel.pack((const char *) k->data + h*k->nb[2], n_k/n_sample*k->nb[1], n_sample, d,
                    k->type == GGML_TYPE_Q8_0, s.sample);
            sampled = h;
        }
        w.offsets[i] = n_sample > 0 ? offset_of(w, s, h, i%n_q) : 0.0f;
    }

    for (int64_t first = 0; first < n_head_kv; first += n_round) {
        const int64_t n = std::min(n_round, n_head_kv - first);

        // the heads of a row stand together in the cache
        for (int64_t i = ith; packs_once && i < n*n_batches; i += nth) {
            pack(first + i%n, i/n, w.panels + (i%n*n_batches + i/n)*batch_size);
        }

        // f(tile, range) for all of them
        const auto for_tiles = [&](int64_t n_ranges, const auto & f) {
            h2o_for_items(params, n*n_tiles*n_ranges, [&](int64_t i) {
                f(get_tile(first + i/n_ranges/n_tiles, i/n_ranges%n_tiles), i%n_ranges);
            });
            ggml_barrier(params->threadpool);
        };

        if (n_ranges == 1) {
            for_tiles(1, [&](const tile_queries & t, int64_t) {
                score(w, s, t, 0, s.scores);
                select(s, t, s.scores);
            });
        } else {
            for_tiles(n_ranges, [&](const tile_queries & t, int64_t range) { score(w, s, t, range, scores_of(w, t)); });
            for_tiles(1,       [&](const tile_queries & t, int64_t)      { select(s, t, scores_of(w, t)); });
        }
    }
}

} // namespace

size_t ggml_h2o_top_keys_work_size(const ggml_tensor * dst, int n_threads) {
    return h2o_work_size(top_keys(dst), n_threads);
}

void ggml_compute_forward_h2o_top_keys(const ggml_compute_params * params, ggml_tensor * dst) {
    h2o_compute(top_keys(dst), params);
}
