#include "ggml/attention/cpu/blocks.h"

#include "ggml/attention/cpu/pack.h"
#include "ggml/attention/cpu/rows.h"

#include "ggml-cpu-impl.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

constexpr int64_t MAX_IN_PLACE_ROWS = 16;   // of a KV head, without sums; from about twice as many on, packed keys are faster
constexpr int64_t MIN_PACKED_KEYS   = 4096; // fewer keys are as fast packed all at once

constexpr int64_t IN_PLACE_BLOCK = 128;
constexpr int64_t PACKED_BLOCK   = 256;  // with its logits it stays in the L2 cache
constexpr int64_t MAX_PART_ROWS  = 1024; // each part packs the keys for itself
constexpr int64_t MIN_ITEMS      = 32;

static bool can_read_in_place(const ggml_tensor * dst) {
    const h2o_attn_args args(dst);

    const int64_t max_rows = args.has_query_sums ? H2O_ATTN_MAX_ROWS : MAX_IN_PLACE_ROWS;

    return args.n_q*args.group <= max_rows && args.d_k % H2O_ATTN_LANES == 0 && args.d_v % H2O_ATTN_LANES == 0;
}

bool h2o_attn_blocks::is_for(const ggml_tensor * dst) {
    const h2o_attn_args args(dst);

    if (args.n_block > 1 || (args.has_sums && !args.has_query_sums)) {
        return false;
    }
    const bool packs_blocks = !args.has_sums && !h2o_attn_lookup_args(dst) && args.n_k >= MIN_PACKED_KEYS;

    return can_read_in_place(dst) || packs_blocks;
}

h2o_attn_blocks::h2o_attn_blocks(const ggml_tensor * dst, const h2o_attn_kernel & kernel, int n_threads)
    : h2o_attn_args(dst), kernel(kernel), n_threads(n_threads), lookups(dst), reads_in_place(can_read_in_place(dst)) {
    n_rows  = n_q*group;
    d_k_pad = h2o_attn_pad(d_k);
    d_v_pad = h2o_attn_pad(d_v);

    block_size = reads_in_place ? IN_PLACE_BLOCK : PACKED_BLOCK;
    n_parts    = reads_in_place ? 1 : h2o_attn_ceil_div(n_rows, MAX_PART_ROWS);
    part_size  = reads_in_place ? n_rows : h2o_attn_ceil_div(n_rows, n_parts*kernel.n_rows)*kernel.n_rows;
    n_runs     = h2o_attn_ceil_div(MIN_ITEMS, reads_in_place ? 1 : n_parts*n_head_kv);
    n_blocks   = h2o_attn_ceil_div(n_k, block_size);
    n_runs     = std::min(n_runs, n_blocks);

    n_lookup_blocks = h2o_attn_ceil_div(lookups.n_rows, block_size);

    ld = block_size + 32; // an odd multiple of 32 floats: rows spread over the sets of the L1 cache

    state_size   = h2o_attn_ceil_div(d_v + 2, 16)*16;
    weights_size = has_sums ? h2o_attn_ceil_div(n_rows*(ld + 1), 16)*16 : 0;

    n_item_rows = reads_in_place ? n_head_kv*n_rows : part_size;

    off_weights = (n_runs + n_lookup_blocks)*n_head_kv*n_rows*state_size;
    off_thread  = off_weights + n_blocks*n_head_kv*weights_size;
    thread_size = n_item_rows*d_k_pad + H2O_ATTN_MAX_ROWS*(ld + d_k_pad + d_v_pad + 2) + block_size*(d_k_pad + d_v_pad + 1) +
        H2O_ATTN_KEYS*std::max(d_k_pad, d_v_pad) + (lookups ? 3*n_head_kv*block_size : 0);
    size = off_thread + n_threads*thread_size;
}

h2o_attn_blocks::scratch h2o_attn_blocks::thread_scratch(float * work, int ith) const {
    h2o_attn_take take { work + off_thread + ith*thread_size };

    scratch s;
    s.q      = take(n_item_rows*d_k_pad);
    s.logits = take(H2O_ATTN_MAX_ROWS*ld);
    s.split  = take(H2O_ATTN_MAX_ROWS*d_k_pad);
    s.o      = take(H2O_ATTN_MAX_ROWS*d_v_pad);
    s.m      = take(H2O_ATTN_MAX_ROWS);
    s.l      = take(H2O_ATTN_MAX_ROWS);
    s.k      = take(block_size*d_k_pad);
    s.v      = take(block_size*d_v_pad);
    s.rows   = take(H2O_ATTN_KEYS*std::max(d_k_pad, d_v_pad));
    s.iota   = (int32_t *) take(block_size);
    s.lookup = (int32_t *) take(lookups ? 3*n_head_kv*block_size : 0);
    s.max_q  = 0.0f;

    std::iota(s.iota, s.iota + block_size, 0);

    return s;
}

// lookups, then those that see most keys first
h2o_attn_blocks::item h2o_attn_blocks::get_item(int64_t i) const {
    const int64_t n_lookup_items = lookups.n*n_lookup_blocks;
    if (i < n_lookup_items) {
        const int64_t lookup = i/n_lookup_blocks;
        return { n_runs + i%n_lookup_blocks, 0, n_head_kv, lookups.start(lookup)*group, lookups.end(lookup, n_q)*group, lookup };
    }
    i -= n_lookup_items;

    const int64_t run = i % n_runs;
    if (reads_in_place) {
        return { run, 0, n_head_kv, 0, n_rows, -1 };
    }

    const int64_t h    = i/n_runs % n_head_kv;
    const int64_t part = n_parts - 1 - i/n_runs/n_head_kv;

    return { run, h, h + 1, std::min(part*part_size, n_rows), std::min((part + 1)*part_size, n_rows), -1 };
}

// A state is (o, m, l): m = max(m_a, m_b), w_x = l_x*exp(m_x - m), l = w_a + w_b, o = (w_a*o_a + w_b*o_b)/l
static void fuse(float * state, int64_t d, const float * o, float m, float l) {
    if (l == 0.0f) {
        return;
    }

    float & m_a = state[d];
    float & l_a = state[d + 1];

    if (l_a == 0.0f) {
        memcpy(state, o, d*sizeof(float));
        m_a = m;
        l_a = l;
        return;
    }

    const float max = m > m_a || std::isnan(m) ? m : m_a;
    const float w_a = l_a*expf(m_a - max);
    const float w_b = l  *expf(m   - max);
    const float sum = w_a + w_b;
    const float f_a = w_a/sum;
    const float f_b = w_b/sum;

    for (int64_t i = 0; i < d; ++i) {
        state[i] = f_a*state[i] + f_b*o[i];
    }
    m_a = max;
    l_a = sum;
}

// A block's keys; those of types that the kernels do not know are converted.
h2o_attn_source h2o_attn_blocks::source(const scratch & s, const ggml_tensor * t, int64_t h, const int32_t * rows, int64_t n,
        float * converted) const {
    h2o_attn_source res;
    if (!h2o_attn_find_source(t, h, rows, res)) {
        const int64_t d = t->ne[0];
        for (int64_t i = 0; i < n; ++i) {
            h2o_attn_read_row(t, rows[i], h, converted + i*d);
        }
        res = { converted, (int64_t) (d*sizeof(float)), 0, s.iota, H2O_ATTN_F32 };
    }
    return res;
}

// After a block of a run comes the next one, then the first of the run that the thread most likely takes: so many have begun meanwhile.
h2o_attn_blocks::block h2o_attn_blocks::block_after(const block & b, int64_t run, int64_t n_keys) const {
    const int64_t next_run = run + n_threads;

    int64_t key = b.key + b.n;
    int64_t end = std::min(run_start(run + 1, n_keys), n_keys);
    if (key == end) {
        key = next_run < n_runs ? run_start(next_run, n_keys) : n_keys;
        end = n_keys;
    }
    return { key, std::min(block_size, end - key) };
}

bool h2o_attn_blocks::read_in_place(const scratch & s, const h2o_attn_tile & t, int64_t h, const h2o_attn_plain_keys & keys, int64_t n,
        const int64_t * hidden, const int64_t * visible, const next_keys & next) const {
    h2o_attn_in_place x = {
        /*.n_rows   =*/ t.n_rows,
        /*.d_k      =*/ d_k,
        /*.d_v      =*/ d_v,
        /*.n_k      =*/ n,
        /*.q        =*/ t.q,
        /*.hidden   =*/ hidden,
        /*.visible  =*/ visible,
        /*.k        =*/ source(s, keys.k, h, keys.rows, n, s.k),
        /*.v        =*/ source(s, keys.v, h, keys.rows, n, s.v),
        /*.next     =*/ {},
        /*.n_next   =*/ 0,
        /*.logits   =*/ t.logits,
        /*.ld       =*/ t.ld,
        /*.o        =*/ t.o,
        /*.ld_o     =*/ d_v_pad,
        /*.add      =*/ false,
        /*.m        =*/ t.m,
        /*.l        =*/ t.l,
    };
    x.n_next = h2o_attn_find_source(keys.k, next.head, next.rows, x.next) ? next.n : 0;

    return kernel.in_place(x);
}

void h2o_attn_blocks::add_results(float * work, const scratch & s, int64_t run, int64_t h, int64_t row, int n) const {
    for (int r = 0; r < n; ++r) {
        fuse(state(work, run, h, row + r), d_v, s.o + r*d_v_pad, s.m[r], s.l[r]);
    }
}

void h2o_attn_blocks::compute_block(float * work, const scratch & s, const item & it, int64_t h, const block & b, const block & after) const {
    const int64_t   key = b.key;
    const int64_t   n   = b.n;
    const int32_t * idx = rows_of(h, 0) + key;

    h2o_attn_peaks max = { 0.0f, 0.0f };
    for (int64_t i = 0; !reads_in_place && i < n; i += H2O_ATTN_KEYS) {
        for (int64_t j = after.key + i; j < after.key + std::min(i + H2O_ATTN_KEYS, after.n); ++j) {
            h2o_attn_prefetch_row(k, rows_of(h, 0)[j], h);
            h2o_attn_prefetch_row(v, rows_of(h, 0)[j], h);
        }
        max.add(h2o_attn_pack_keys(kernel, k, v, h, idx, i, n, h2o_attn_pad(n), s.rows, s.k, s.v));
    }

    const int64_t nothing[H2O_ATTN_MAX_ROWS] = {};
    int64_t       visible[H2O_ATTN_MAX_ROWS];
    const float * q_rows [H2O_ATTN_MAX_ROWS];

    const int64_t n_rows_tile = reads_in_place ? H2O_ATTN_MAX_ROWS : kernel.n_rows;

    for (int64_t row = it.row; row < it.end_row; row += n_rows_tile) {
        const int n_here = std::min(n_rows_tile, it.end_row - row);
        for (int r = 0; r < n_here; ++r) {
            visible[r] = std::clamp<int64_t>(n_visible(row + r) - key, 0, n);
            q_rows [r] = q_of(row + r, h, 0);
        }
        if (visible[n_here - 1] == 0) {
            continue;
        }

        h2o_attn_tile t = {
            /*.n_rows   =*/ n_here,
            /*.d_k      =*/ d_k,
            /*.d_v      =*/ d_v,
            /*.n_k      =*/ h2o_attn_pad(n),
            /*.q        =*/ s.q + ((h - it.head)*(it.end_row - it.row) + row - it.row)*d_k,
            /*.visible  =*/ visible,
            /*.counted  =*/ nothing,
            /*.k        =*/ s.k,
            /*.v        =*/ s.v,
            /*.n_k2     =*/ 0,
            /*.hidden2  =*/ nothing,
            /*.visible2 =*/ nothing,
            /*.k2       =*/ nullptr,
            /*.v2       =*/ nullptr,
            /*.n_query  =*/ 0,
            /*.group    =*/ (int) group,
            /*.query_head =*/ 0,
            /*.query_k  =*/ {},
            /*.query_v  =*/ {},
            /*.query_o  =*/ nullptr,
            /*.next_k   =*/ {},
            /*.next_v   =*/ {},
            /*.n_next   =*/ 0,
            /*.logits   =*/ s.logits,
            /*.ld       =*/ ld,
            /*.split    =*/ s.split,
            /*.o        =*/ s.o,
            /*.m        =*/ s.m,
            /*.l        =*/ s.l,
            /*.sums     =*/ nullptr,
        };
        if (has_sums) { // all rows are one tile
            t.logits = block_weights(work, h, key/block_size);
        }

        bool is_done = false;
        if (reads_in_place) {
            const next_keys next = h + 1 < it.end_head ?
                next_keys { h + 1,   rows_of(h + 1, 0)   + key,       n       } :
                next_keys { it.head, rows_of(it.head, 0) + after.key, after.n };

            is_done = read_in_place(s, t, h, { k, v, idx }, n, nullptr, visible, next);
        } else if (h2o_attn_is_tame(s.max_q, max, d_k) && visible[0] > 0) {
            kernel.tile(t);
            is_done = true;
        }
        if (!is_done) {
            h2o_attn_plain_tile(t, h, { k, v, idx }, {}, q_rows, scale);
            for (int r = 0; has_sums && r < n_here; ++r) { // divided by l
                std::transform(t.logits + r*ld, t.logits + r*ld + visible[r], t.logits + r*ld, [&](float x) { return x*s.l[r]; });
            }
        }
        if (has_sums) {
            std::copy_n(s.m, n_here, t.logits + n_rows*ld);
        }

        add_results(work, s, it.run, h, row, n_here);
    }
}

void h2o_attn_blocks::compute_item(float * work, scratch & s, const item & it) const {
    if (it.row == it.end_row) {
        return;
    }

    float * q = s.q;
    for (int64_t h = it.head; h < it.end_head; ++h) {
        for (int64_t row = it.row; row < it.end_row; ++row, q += d_k) {
            scaled_q(row, h, 0, q);
            std::fill_n(state(work, it.run, h, row), d_v + 2, 0.0f);
            state(work, it.run, h, row)[d_v] = -INFINITY;
        }
    }
    s.max_q = reads_in_place ? 0.0f : h2o_attn_peak(s.q, q - s.q);

    if (it.lookup >= 0) {
        compute_lookup(work, s, it);
        return;
    }

    const int64_t n_keys = n_visible(it.end_row - 1);
    const int64_t end    = std::min(run_start(it.run + 1, n_keys), n_keys);

    for (int64_t key = run_start(it.run, n_keys); key < end; key += block_size) {
        const block b     = { key, std::min(block_size, end - key) };
        const block after = block_after(b, it.run, n_keys);
        for (int64_t h = it.head; h < it.end_head; ++h) {
            compute_block(work, s, it, h, b, after);
        }
    }
}

void h2o_attn_blocks::set_query_sums(float * work, int64_t h, int64_t query) const {
    float * dst = sums + (query*n_head_kv + h)*n_k;
    std::fill_n(dst, n_k, 0.0f);

    const int64_t n_summed = std::min(n_visible(query*group), n_counted(query*group, h, 0));

    for (int64_t key = 0; key < n_summed; key += block_size) {
        const int64_t n       = std::min(block_size, n_summed - key);
        const float * weights = block_weights(work, h, key/block_size);

        for (int64_t row = query*group; row < (query + 1)*group; ++row) {
            const float * fused = state(work, 0, h, row);
            const float   m     = fused[d_v];
            const float   l     = fused[d_v + 1];
            const float   f     = l == 0.0f ? 0.0f : expf(weights[n_rows*ld + row] - m)/l;

            for (int64_t j = 0; j < n; ++j) {
                dst[key + j] += weights[row*ld + j]*f;
            }
        }
    }
}

void h2o_attn_blocks::compute(const ggml_compute_params * params) const {
    GGML_ASSERT(size*sizeof(float) + 64 <= params->wsize);

    float * work = (float *) GGML_PAD((uintptr_t) params->wdata, 64);

    scratch s = thread_scratch(work, params->ith);

    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);

    const int64_t n_items = lookups.n*n_lookup_blocks + n_runs*n_parts*(reads_in_place ? 1 : n_head_kv);
    for (int64_t i = params->ith; i < n_items; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        compute_item(work, s, get_item(i));
    }

    ggml_barrier(params->threadpool);

    const int64_t n_together = has_sums ? group : 1; // rows

    for (int64_t i = params->ith*n_together; i < n_head_kv*n_rows; i += params->nth*n_together) {
        const int64_t h = i/n_rows;

        for (int64_t row = i%n_rows; row < i%n_rows + n_together; ++row) {
            float * res = state(work, 0, h, row);
            for (int64_t run = 1; run < n_runs + n_lookup_blocks; ++run) {
                const float * other = state(work, run, h, row);
                fuse(res, d_v, other, other[d_v], other[d_v + 1]);
            }
            store(row, h, 0, res, res[d_v], res[d_v + 1]);
        }
        if (has_sums) {
            set_query_sums(work, h, i%n_rows/group);
        }
    }
}
