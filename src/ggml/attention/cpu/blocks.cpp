#include "ggml/attention/cpu/blocks.h"

#include "ggml-cpu-impl.h"

#include <cstring>
#include <numeric>

constexpr int64_t MAX_IN_PLACE_ROWS = 16;   // of a KV head, without sums; from about twice as many on, packed keys are faster
constexpr int64_t MIN_PACKED_KEYS   = 4096; // fewer keys are as fast packed all at once

constexpr int64_t IN_PLACE_BLOCK = 128;
constexpr int64_t PACKED_BLOCK   = 256;  // with its logits it stays in the L2 cache
constexpr int64_t MAX_PART_ROWS  = 1024; // each part packs the keys for itself
constexpr int64_t MIN_ITEMS      = 32;

static bool can_read_in_place(const h2o_attn_args & args) {
    const int64_t max_rows = args.has_query_sums ? H2O_ATTN_MAX_ROWS : MAX_IN_PLACE_ROWS;

    return args.n_q*args.group <= max_rows && args.d_k % H2O_ATTN_LANES == 0 && args.d_v % H2O_ATTN_LANES == 0;
}

bool h2o_attn_blocks::is_for(const ggml_tensor * dst) {
    const h2o_attn_args args(dst);

    if (args.n_block > 1 || (args.has_sums && !args.has_query_sums)) {
        return false;
    }
    const bool packs_blocks = !args.has_sums && !args.further && args.n_k >= MIN_PACKED_KEYS;

    return can_read_in_place(args) || packs_blocks;
}

h2o_attn_blocks::h2o_attn_blocks(const ggml_tensor * dst, const h2o_attn_kernel & kernel, int n_threads)
    : h2o_attn_args(dst), kernel(kernel), n_threads(n_threads), reads_in_place(can_read_in_place(*this)) {
    n_rows  = n_q*group;
    d_k_pad = h2o_attn_pad(d_k);
    d_v_pad = h2o_attn_pad(d_v);

    block_size = reads_in_place ? IN_PLACE_BLOCK : PACKED_BLOCK;
    n_parts    = reads_in_place ? 1 : h2o_ceil_div(n_rows, MAX_PART_ROWS);
    part_size  = reads_in_place ? n_rows : h2o_ceil_div(n_rows, n_parts*kernel.n_rows)*kernel.n_rows;
    n_runs     = h2o_ceil_div(MIN_ITEMS, reads_in_place ? 1 : n_parts*n_head_kv);
    n_blocks   = h2o_ceil_div(n_k, block_size);
    n_runs     = std::min(n_runs, n_blocks);

    n_further_blocks = h2o_ceil_div(further.n_rows, block_size);

    ld = block_size + 32; // an odd multiple of 32 floats: rows spread over the sets of the L1 cache

    state_size   = h2o_ceil_div(d_v + 2, 16)*16;
    weights_size = has_sums ? h2o_ceil_div(n_rows*(ld + 1), 16)*16 : 0;

    n_item_rows = reads_in_place ? n_head_kv*n_rows : part_size;

    h2o_take take { nullptr };
    take.get<float>((n_runs + n_further_blocks)*n_head_kv*n_rows*state_size);
    off_weights = take.size/sizeof(float);
    take.get<float>(n_blocks*n_head_kv*weights_size);
    off_thread = take.size;
    get_scratch(take);
    thread_size = take.size - off_thread;
    work_size   = off_thread + n_threads*thread_size;
}

h2o_attn_blocks::scratch h2o_attn_blocks::get_scratch(h2o_take & take) const {
    scratch s;
    s.q       = take.get<float>(n_item_rows*d_k_pad);
    s.logits  = take.get<float>(H2O_ATTN_MAX_ROWS*ld);
    s.q_pairs = take.get<float>(H2O_ATTN_MAX_ROWS*d_k_pad);
    s.o       = take.get<float>(H2O_ATTN_MAX_ROWS*d_v_pad);
    s.m       = take.get<float>(H2O_ATTN_MAX_ROWS);
    s.l       = take.get<float>(H2O_ATTN_MAX_ROWS);
    s.k       = take.get<float>(block_size*d_k_pad);
    s.v       = take.get<float>(block_size*d_v_pad);
    s.rows    = take.get<float>(H2O_ATTN_KEYS*std::max(d_k_pad, d_v_pad));
    s.iota    = take.get<int32_t>(block_size);
    s.further = take.get<int32_t>(further ? 2*n_head_kv*block_size : 0);
    s.max_q   = 0.0f;
    if (s.iota) {
        std::iota(s.iota, s.iota + block_size, 0);
    }
    return s;
}

// lists, then those that see most keys first
h2o_attn_blocks::item h2o_attn_blocks::get_item(int64_t i) const {
    const int64_t n_list_items = further.n*n_further_blocks;
    if (i < n_list_items) {
        const int64_t list = i/n_further_blocks;
        return { n_runs + i%n_further_blocks, 0, n_head_kv, further.start(list)*group, further.end(list, n_q)*group, list };
    }
    i -= n_list_items;

    const int64_t run = i % n_runs;
    if (reads_in_place) {
        return { run, 0, n_head_kv, 0, n_rows, -1 };
    }

    const int64_t h    = i/n_runs % n_head_kv;
    const int64_t part = n_parts - 1 - i/n_runs/n_head_kv;

    return { run, h, h + 1, std::min(part*part_size, n_rows), std::min((part + 1)*part_size, n_rows), -1 };
}

// A state is (o, m, l): m = max(m_a, m_b), w_x = l_x*exp(m_x - m), l = w_a + w_b, o = (w_a*o_a + w_b*o_b)/l. Without o, it is 0.
static void fuse(float * state, int64_t d, const float * o, float m, float l) {
    if (l == 0.0f) {
        return;
    }

    float & m_a = state[d];
    float & l_a = state[d + 1];

    if (l_a == 0.0f) {
        if (o) {
            memcpy(state, o, d*sizeof(float));
        }
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
        state[i] = f_a*state[i] + (o ? f_b*o[i] : 0.0f);
    }
    m_a = max;
    l_a = sum;
}

h2o_attn_tile h2o_attn_blocks::get_tile(const scratch & s, const item & it, int64_t h, int64_t row, int64_t n) const {
    h2o_attn_tile t = {};
    t.n_rows  = (int) n;
    t.d_k     = d_k;
    t.d_v     = d_v;
    t.q       = s.q + ((h - it.head)*(it.end_row - it.row) + row - it.row)*d_k;
    t.softcap = softcap;
    t.logits  = s.logits;
    t.ld      = ld;
    t.q_pairs = s.q_pairs;
    t.o       = s.o;
    t.m       = s.m;
    t.l       = s.l;
    return t;
}

bool h2o_attn_blocks::read_in_place(const scratch & s, const h2o_attn_tile & t, int64_t h, const head_keys & keys) const {
    h2o_attn_in_place x = {};
    x.n_rows  = t.n_rows;
    x.d_k     = d_k;
    x.d_v     = d_v;
    x.n_k     = keys.n;
    x.q       = t.q;
    x.visible = t.own.visible;
    x.k       = h2o_attn_get_source(keys.from.k, h, keys.from.rows, keys.n, s.iota, s.k);
    x.v       = h2o_attn_get_source(keys.from.v, h, keys.from.rows, keys.n, s.iota, s.v);
    x.softcap = softcap;
    x.logits  = t.logits;
    x.ld      = t.ld;
    x.o       = t.o;
    x.ld_o    = d_v_pad;
    x.m       = t.m;
    x.l       = t.l;
    if (h2o_attn_find_source(keys.from.k, keys.next_head, keys.next_rows, s.iota, x.next)) {
        x.n_next = keys.n_next;
    }
    return kernel.in_place(x);
}

void h2o_attn_blocks::compute_plain(const h2o_attn_tile & t, int64_t h, int64_t row, const head_keys & keys) const {
    const float * q[H2O_ATTN_MAX_ROWS];
    for (int r = 0; r < t.n_rows; ++r) {
        q[r] = q_of(row + r, h, 0);
    }
    h2o_attn_plain_tile(t, h, keys.from, {}, q, scale);
}

void h2o_attn_blocks::add_results(float * work, const h2o_attn_tile & t, int64_t run, int64_t h, int64_t row) const {
    for (int r = 0; r < t.n_rows; ++r) {
        fuse(state(work, run, h, row + r), d_v, t.o + r*d_v_pad, t.m[r], t.l[r]);
    }
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

void h2o_attn_blocks::compute_own(float * work, const scratch & s, const item & it, int64_t h, const block & b, const block & after) const {
    const bool is_last_head = h + 1 == it.end_head;

    const head_keys keys = {
        /*.from      =*/ { k, v, rows_of(h, 0).from(b.key) },
        /*.n         =*/ b.n,
        /*.next_head =*/ is_last_head ? it.head : h + 1,
        /*.next_rows =*/ is_last_head ? rows_of(it.head, 0).from(after.key) : rows_of(h + 1, 0).from(b.key),
        /*.n_next    =*/ is_last_head ? after.n : b.n,
    };

    h2o_attn_peaks max = { 0.0f, 0.0f };
    for (int64_t i = 0; !reads_in_place && i < b.n; i += H2O_ATTN_KEYS) {
        for (int64_t j = i; j < std::min(i + H2O_ATTN_KEYS, after.n); ++j) {
            h2o_attn_prefetch_row(k, rows_of(h, 0)[after.key + j], h);
            h2o_attn_prefetch_row(v, rows_of(h, 0)[after.key + j], h);
        }
        max.add(h2o_attn_pack_keys(kernel, k, v, h, keys.from.rows, i, b.n, h2o_attn_pad(b.n), s.rows, s.k, s.v));
    }

    int64_t visible[H2O_ATTN_MAX_ROWS];

    const int64_t n_rows_tile = reads_in_place ? H2O_ATTN_MAX_ROWS : kernel.n_rows;

    for (int64_t row = it.row; row < it.end_row; row += n_rows_tile) {
        h2o_attn_tile t = get_tile(s, it, h, row, std::min(n_rows_tile, it.end_row - row));
        t.own = { h2o_attn_pad(b.n), s.k, s.v, visible };
        for (int r = 0; r < t.n_rows; ++r) {
            visible[r] = std::clamp<int64_t>(n_visible(row + r) - b.key, 0, b.n);
        }
        if (visible[t.n_rows - 1] == 0) {
            continue;
        }
        if (has_sums) { // all rows are one tile
            t.logits = block_weights(work, h, b.key/block_size);
        }

        const bool is_done = reads_in_place ? read_in_place(s, t, h, keys) :
            h2o_attn_is_tame(s.max_q, max, d_k) && visible[0] > 0 && kernel.tile(t);
        if (!is_done) {
            compute_plain(t, h, row, keys);
            for (int r = 0; has_sums && r < t.n_rows; ++r) { // divided by l
                std::transform(t.logits + r*ld, t.logits + r*ld + visible[r], t.logits + r*ld, [&](float x) { return x*t.l[r]; });
            }
        }
        if (has_sums) {
            std::copy_n(t.m, t.n_rows, t.logits + n_rows*ld);
        }

        add_results(work, t, it.run, h, row);
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

    if (it.list >= 0) {
        compute_further(work, s, it);
        return;
    }

    const int64_t n_keys = n_visible(it.end_row - 1);
    const int64_t end    = std::min(run_start(it.run + 1, n_keys), n_keys);

    for (int64_t key = run_start(it.run, n_keys); key < end; key += block_size) {
        const block b     = { key, std::min(block_size, end - key) };
        const block after = block_after(b, it.run, n_keys);
        for (int64_t h = it.head; h < it.end_head; ++h) {
            compute_own(work, s, it, h, b, after);
        }
    }
}

void h2o_attn_blocks::fuse_runs(float * work, int64_t h, int64_t row) const {
    float * res = state(work, 0, h, row);
    for (int64_t run = 1; run < n_runs + n_further_blocks; ++run) {
        const float * other = state(work, run, h, row);
        fuse(res, d_v, other, other[d_v], other[d_v + 1]);
    }
    if (has_sinks && sink_of(row, h) != -INFINITY) {
        fuse(res, d_v, nullptr, sink_of(row, h), 1.0f);
    }
    store(row, h, 0, res, res[d_v], res[d_v + 1]);
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
    float * work = (float *) GGML_PAD((uintptr_t) params->wdata, 64);

    h2o_take take { (char *) work + off_thread + params->ith*thread_size };
    scratch s = get_scratch(take);

    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);

    const int64_t n_items = further.n*n_further_blocks + n_runs*n_parts*(reads_in_place ? 1 : n_head_kv);
    for (int64_t i = params->ith; i < n_items; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        compute_item(work, s, get_item(i));
    }

    ggml_barrier(params->threadpool);

    const int64_t n_together = has_sums ? group : 1; // rows

    for (int64_t i = params->ith*n_together; i < n_head_kv*n_rows; i += params->nth*n_together) {
        const int64_t h = i/n_rows;

        for (int64_t row = i%n_rows; row < i%n_rows + n_together; ++row) {
            fuse_runs(work, h, row);
        }
        if (has_sums) {
            set_query_sums(work, h, i%n_rows/group);
        }
    }
}
