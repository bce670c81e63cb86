#include "ggml/attention/cpu/plan.h"

#include "ggml/attention/cpu/rows.h"

#include <numeric>

constexpr int64_t MAX_ITEMS  = 256;         // at least one for each KV head
constexpr int64_t MAX_RUNS   = 128;         // of lookups: within a run the next lookup's keys are asked for in time
constexpr int64_t MIN_ITEMS  = 32;          // with lookups, if there are so many tiles
constexpr int64_t MAX_PACKED = 8*1024*1024; // floats of packed K and V, unless one KV head takes more

h2o_attn_plan::h2o_attn_plan(const ggml_tensor * dst, const h2o_attn_kernel & kernel, int n_threads)
    : h2o_attn_args(dst), further(dst), lookups(further.are_of_queries() ? h2o_attn_lookup_args::none(dst) : further), kernel(kernel) {
    d_k_pad = h2o_attn_pad(d_k);
    d_v_pad = h2o_attn_pad(d_v);
    n_k_pad = h2o_attn_pad(n_k);

    n_units = n_k_pad/H2O_ATTN_KEYS;

    n_query_tiles = has_query_sums ? h2o_attn_ceil_div(group, kernel.n_rows) : 0;

    const int64_t max_items = std::max<int64_t>(MAX_ITEMS/n_head_kv, 1);

    n_runs       = lookups ? std::min(lookups.n, h2o_attn_ceil_div(MAX_RUNS, n_head_kv)) : 1;
    n_parts      = lookups ? h2o_attn_ceil_div(MIN_ITEMS, n_runs*n_head_kv) : max_items;
    n_parts      = std::min(n_parts, has_query_sums ? std::min(lookups.size, n_q) : n_tiles(std::min(lookups.size, n_q)));
    n_own        = lookups && !lookups.is_far() ? h2o_attn_ceil_div(k->ne[1], 32) : 0;
    n_lookup_pad = h2o_attn_pad(lookups.n_rows);
    n_query      = further.are_of_queries() ? further.n_rows : 0;
    n_queries    = n_query > 0 ? (kernel.n_rows + group - 2)/group + 1 : 0;
    n_items      = n_runs*n_parts;

    // at least one item for each thread
    n_round = std::max(MAX_PACKED/(n_k_pad*(d_k_pad + d_v_pad)), h2o_attn_ceil_div(n_threads, n_items));
    n_round = std::min(n_round, n_head_kv);

    // an odd multiple of 32 floats: rows spread over the sets of the L1 cache
    ld = h2o_attn_ceil_div(n_k_pad + h2o_attn_pad(further.n_rows), 64)*64 + 32;

    const auto place = [this](int64_t n) {
        const int64_t offset = size;
        size += h2o_attn_ceil_div(n, 16)*16; // cache lines
        return offset;
    };

    size = 0;
    off_k     = place(n_round*n_k_pad*d_k_pad);
    off_v     = place(n_round*n_k_pad*d_v_pad);
    off_peaks = place(n_round*n_units*2);
    off_sums  = place(has_sums ? n_round*n_items*n_k_pad : 0);

    // a tile's rows of types that the kernels do not know
    const auto n_converted = [this](const ggml_tensor * t) {
        h2o_attn_source x;
        return h2o_attn_find_source(t, 0, nullptr, x) ? 0 : n_queries*n_query*t->ne[0];
    };
    n_converted_k = n_converted(k);
    n_converted_v = n_converted(v);

    off_thread  = size;
    thread_size = H2O_ATTN_MAX_ROWS*(2*d_k_pad + d_v_pad + 2 + ld) + n_lookup_pad*(d_k_pad + d_v_pad + 3) + n_own +
        (n_query > 0 ? H2O_ATTN_MAX_ROWS*d_v_pad + n_queries*n_query : 0) + n_converted_k + n_converted_v;
    place(n_threads*thread_size);
}

h2o_attn_scratch h2o_attn_plan::thread_scratch(float * work, int ith) const {
    h2o_attn_take take { work + off_thread + ith*thread_size };

    h2o_attn_scratch res;
    res.q      = take(H2O_ATTN_MAX_ROWS*d_k_pad);
    res.split  = take(H2O_ATTN_MAX_ROWS*d_k_pad);
    res.o      = take(H2O_ATTN_MAX_ROWS*d_v_pad);
    res.m      = take(H2O_ATTN_MAX_ROWS);
    res.l      = take(H2O_ATTN_MAX_ROWS);
    res.logits = take(H2O_ATTN_MAX_ROWS*ld);
    res.rows   = res.q; // H2O_ATTN_KEYS of them

    res.keys.n     = 0;
    res.keys.k     = take(n_lookup_pad*d_k_pad);
    res.keys.v     = take(n_lookup_pad*d_v_pad);
    res.keys.rows  = (int32_t *) take(n_lookup_pad);
    res.keys.first = (int32_t *) take(n_lookup_pad);
    res.keys.last  = (int32_t *) take(n_lookup_pad);
    res.keys.max   = { 0.0f, 0.0f };

    res.query_o = take(n_query > 0 ? H2O_ATTN_MAX_ROWS*d_v_pad : 0);
    res.query_k = take(n_converted_k);
    res.query_v = take(n_converted_v);
    res.iota    = (int32_t *) take(n_queries*n_query);
    std::iota(res.iota, res.iota + n_queries*n_query, 0);

    res.next_rows = nullptr;
    res.n_next    = 0;

    res.own      = (uint32_t *) take(n_own);
    res.own_head = -1;

    return res;
}
