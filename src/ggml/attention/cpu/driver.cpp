#include "ggml/attention/cpu/driver.h"

#include "ops.h"

#include "ggml/attention/kernels/kernels.h"

#include <cstring>
#include <numeric>

constexpr int64_t MAX_IN_PLACE_ROWS = 16;   // of a KV head; from about twice as many on, packed keys are faster
constexpr int64_t MIN_BLOCKS_KEYS   = 4096; // fewer are as fast with all logits at once

constexpr int64_t IN_PLACE_BLOCK = 128;
constexpr int64_t PACKED_BLOCK   = 256;         // with its logits it stays in the L2 cache
constexpr int64_t MAX_SLICE_ROWS = 1024;        // with blocks: each slice packs all keys
constexpr int64_t MAX_ITEMS      = 256;         // at least one for each KV head
constexpr int64_t MAX_BATCHES    = 128;
constexpr int64_t MIN_ITEMS      = 32;
constexpr int64_t MAX_RANGES     = 128;         // in place; for long texts, so that many threads have work
constexpr int64_t MAX_PACKED     = 8*1024*1024; // floats of packed K and V, unless one KV head takes more
constexpr int64_t MAX_LOGITS     = 8*1024*1024; // floats of a thread, unless a step of rows takes more
constexpr int64_t MAX_SUMS       = 8*1024*1024; // floats of a KV head's items

h2o_attn_driver::way h2o_attn_driver::find_way() const {
    if (kind_of_sums == GGML_H2O_ATTN_COLUMN_SUMS) {
        return PACKED;
    }
    if (kind_of_sums == GGML_H2O_ATTN_QUERY_SUMS || n_q*group <= MAX_IN_PLACE_ROWS) {
        return IN_PLACE;
    }
    return extra.rows || n_k < MIN_BLOCKS_KEYS ? PACKED : BLOCKS;
}

h2o_attn_driver::h2o_attn_driver(const ggml_tensor * dst, int n_threads)
    : h2o_attn_args(dst), kernel(h2o_attn_kernel_in_use()), n_threads(n_threads), how(find_way()),
      k(dst->src[1]), v(dst->src[2]), has_column_sums(kind_of_sums == GGML_H2O_ATTN_COLUMN_SUMS),
      has_query_sums(kind_of_sums == GGML_H2O_ATTN_QUERY_SUMS) {
    const int64_t lanes  = how == IN_PLACE ? H2O_ATTN_LANES : 1;
    const int64_t n_list = h2o_attn_pad(extra.n_rows);

    d_k_tile = h2o_ceil_div(d_k, lanes)*lanes;
    d_v_tile = h2o_ceil_div(d_v, lanes)*lanes;
    d_k_pad  = h2o_attn_pad(d_k);
    d_v_pad  = h2o_attn_pad(d_v);
    n_k_pad  = h2o_attn_pad(n_k);
    n_packs  = how == PACKED ? n_k_pad/H2O_ATTN_KEYS : 0;
    n_rows   = n_q*group;

    block_size = how == PACKED ? n_k_pad : how == BLOCKS ? PACKED_BLOCK : IN_PLACE_BLOCK;
    local_keys = how == PACKED ? n_list : block_size;

    // an odd multiple of 32 floats: rows spread over the sets of the L1 cache
    ld        = h2o_ceil_div(block_size + (how == PACKED ? n_list : 0), 64)*64 + 32;
    tile_rows = std::clamp<int64_t>(MAX_LOGITS/ld/kernel.row_step*kernel.row_step, kernel.row_step, kernel.n_rows);
    n_batches = 1;
    n_slices  = 1;
    n_ranges  = 1;

    const int64_t n_blocks = h2o_ceil_div(n_k, block_size);
    switch (how) {
        case PACKED:
            n_slices = std::max<int64_t>(std::min(MAX_ITEMS/n_head_kv, MAX_SUMS/n_k_pad), 1);
            if (extra.rows) {
                n_batches = std::min(extra.n, h2o_ceil_div(MAX_BATCHES, n_head_kv));
                n_slices  = h2o_ceil_div(MIN_ITEMS, n_batches*n_head_kv);
            }
            n_slices = std::min(n_slices, n_tiles(std::min(extra.tile, n_q)*group));
            break;
        case BLOCKS:
            n_slices = h2o_ceil_div(n_rows, MAX_SLICE_ROWS);
            n_ranges = std::min(h2o_ceil_div(MIN_ITEMS, n_slices*n_head_kv), n_blocks);
            break;
        case IN_PLACE:
            tile_rows = H2O_ATTN_MAX_ROWS;
            n_ranges  = std::min(std::clamp(n_blocks/2, MIN_ITEMS, MAX_RANGES), n_blocks);
            break;
    }
    n_list_blocks = how == IN_PLACE ? h2o_ceil_div(extra.n_rows, block_size) : 0;
    n_items       = n_batches*n_slices*n_ranges + extra.n*n_list_blocks;

    // at least one item for each thread
    n_round = std::max(MAX_PACKED/(n_k_pad*(d_k_pad + d_v_pad)), h2o_ceil_div(n_threads, n_items));
    n_round = how == PACKED ? std::min(n_round, n_head_kv) : n_head_kv;
}

h2o_attn_driver::shared h2o_attn_driver::get_shared(h2o_take & arena) const {
    const int64_t n_packed  = n_round*n_packs*H2O_ATTN_KEYS;
    const int64_t n_weights = has_query_sums ? h2o_ceil_div(n_k, block_size) : 0;

    shared w;
    w.k       = arena.get<float>(n_packed*d_k_pad);
    w.v       = arena.get<float>(n_packed*d_v_pad);
    w.sums    = arena.get<float>(has_column_sums ? n_round*n_items*n_k_pad : 0);
    w.states  = arena.get<float>((n_ranges - 1 + n_list_blocks)*n_head_kv*n_rows*(d_v_pad + 2));
    w.weights = arena.get<float>(n_weights*n_head_kv*n_rows*(ld + 1));
    return w;
}

h2o_attn_driver::scratch h2o_attn_driver::get_scratch(h2o_take & arena) const {
    scratch s;
    s.q       = arena.get<float>(tile_rows*d_k_pad);
    s.q_pairs = arena.get<float>(tile_rows*d_k_pad);
    s.o       = arena.get<float>(tile_rows*d_v_pad);
    s.m       = arena.get<float>(tile_rows);
    s.l       = arena.get<float>(tile_rows);
    s.logits  = arena.get<float>(tile_rows*ld);
    s.rows    = arena.get<float>(H2O_ATTN_KEYS*std::max(d_k_pad, d_v_pad));
    s.k       = arena.get<float>(local_keys*d_k_pad);
    s.v       = arena.get<float>(local_keys*d_v_pad);
    s.iota    = arena.get<int32_t>(how == IN_PLACE ? block_size : 0);
    if (s.iota) {
        std::iota(s.iota, s.iota + (how == IN_PLACE ? block_size : 0), 0);
    }
    return s;
}

// that of the first range is the result
h2o_attn_driver::state h2o_attn_driver::state_of(const shared & w, int64_t range, int64_t h, int64_t row) const {
    if (range == 0) {
        const int64_t i = state_index(row, h);
        return { o_of(row, h), m + i, l + i };
    }
    float * x = w.states + (((range - 1)*n_head_kv + h)*n_rows + row)*(d_v_pad + 2);
    return { x, x + d_v_pad, x + d_v_pad + 1 };
}

void h2o_attn_driver::clear(const shared & w, int64_t range, int64_t h, int64_t row, int64_t end) const {
    for (; row < end; ++row) {
        const state s = state_of(w, range, h, row);
        std::fill_n(s.o, d_v, 0.0f);
        *s.m = -INFINITY;
        *s.l = 0.0f;
    }
}

// m = max(m_a, m_b), w_x = l_x*exp(m_x - m), l = w_a + w_b, o = (w_a*o_a + w_b*o_b)/l. Without o, it is 0.
void h2o_attn_driver::fuse(const state & a, int64_t d, const float * o, float m, float l) {
    if (l == 0.0f) {
        return;
    }
    if (*a.l == 0.0f) {
        if (o) {
            memcpy(a.o, o, d*sizeof(float));
        }
        *a.m = m;
        *a.l = l;
        return;
    }

    const float max = m > *a.m || std::isnan(m) ? m : *a.m;
    const float w_a = *a.l*expf(*a.m - max);
    const float w_b = l   *expf(m    - max);
    const float sum = w_a + w_b;
    const float f_a = w_a/sum;
    const float f_b = w_b/sum;

    for (int64_t i = 0; i < d; ++i) {
        a.o[i] = f_a*a.o[i] + (o ? f_b*o[i] : 0.0f);
    }
    *a.m = max;
    *a.l = sum;
}

h2o_attn_key_set h2o_attn_driver::keys_of(int64_t h, int64_t key, int64_t end) const {
    h2o_attn_key_set res = {};
    res.k     = h2o_attn_source_of(k, k->data, h, rows_of(h), key);
    res.v     = h2o_attn_source_of(v, v->data, h, rows_of(h), key);
    res.head  = h;
    res.n     = std::min(block_size, end - key);
    res.start = key;
    return res;
}

h2o_attn_key_set h2o_attn_driver::packed_keys(const shared & w, int64_t h) const {
    h2o_attn_key_set res = keys_of(h, 0, n_k);
    res.packed_k = w.k + h%n_round*n_k_pad*d_k_pad;
    res.packed_v = w.v + h%n_round*n_k_pad*d_v_pad;
    return res;
}

// A list's next local_keys keys.
h2o_attn_key_set h2o_attn_driver::extra_keys(int64_t list, int64_t h, int64_t begin) const {
    const int32_t * rows = extra.rows_of(list, h);
    const int64_t   n    = std::partition_point(rows, rows + extra.n_rows, [](int32_t row) { return row >= 0; }) - rows;

    h2o_attn_key_set res = {};
    res.k        = h2o_attn_source_of(k, extra.k, h, rows, begin);
    res.v        = h2o_attn_source_of(v, extra.v, h, rows, begin);
    res.head     = h;
    res.n        = std::clamp<int64_t>(n - begin, 0, local_keys);
    res.is_extra = true;
    return res;
}

// The keys that a thread reads after these: the range's next block, then the first block of the next range that no
// thread has begun.
h2o_attn_key_set h2o_attn_driver::keys_after(const h2o_attn_key_set & keys, int64_t range, int64_t n_keys,
        int64_t h) const {
    const int64_t next_range = range + n_threads;

    int64_t key = keys.start + keys.n;
    int64_t end = std::min(range_start(range + 1, n_keys), n_keys);
    if (key == end) {
        key = next_range < n_ranges ? range_start(next_range, n_keys) : n_keys;
        end = n_keys;
    }
    return keys_of(h, key, end);
}

int64_t h2o_attn_driver::n_counted(int64_t row, int64_t h) const {
    if (!limits) {
        return n_k;
    }
    const int32_t   limit = limits[row/group];
    const int32_t * list  = rows_of(h);

    return list ? std::upper_bound(list, list + n_k, limit) - list : std::clamp<int64_t>((int64_t) limit + 1, 0, n_k);
}

int64_t h2o_attn_driver::n_seen(const h2o_attn_key_set & keys, int64_t row) const {
    return keys.is_extra ? keys.n : std::clamp<int64_t>(n_visible(row) - keys.start, 0, keys.n);
}

// Into the thread's buffers. The keys that are read after these are prefetched.
void h2o_attn_driver::pack(const scratch & s, h2o_attn_key_set & keys, const h2o_attn_key_set & after) const {
    keys.packed_k = s.k;
    keys.packed_v = s.v;
    for (int64_t i = 0; i < keys.n; i += H2O_ATTN_KEYS) {
        for (int64_t j = i; j < std::min(i + H2O_ATTN_KEYS, after.n); ++j) {
            h2o_attn_prefetch_key(after, j);
        }
        h2o_attn_pack_keys(kernel, keys, i, s.rows);
    }
}

// n rows from the row-th on
void h2o_attn_driver::attend(const shared & w, const scratch & s, int64_t range, int64_t row, int64_t n,
        const h2o_attn_key_set & keys, const h2o_attn_key_set & extra, const h2o_attn_key_set & next,
        float * column_sums) const {
    int64_t       visible[2][H2O_ATTN_MAX_ROWS];
    int64_t       counted   [H2O_ATTN_MAX_ROWS];
    float         row_sinks [H2O_ATTN_MAX_ROWS];
    const float * q_rows    [H2O_ATTN_MAX_ROWS];

    if (how != PACKED && n_seen(keys, row + n - 1) == 0) {
        return;
    }
    const int64_t h           = keys.head;
    float *       weights     = has_query_sums && !keys.is_extra ? weights_of(w, h, keys.start) : nullptr;
    const int64_t n_keys_tile = how == IN_PLACE ? keys.n : h2o_attn_pad(keys.n);

    h2o_attn_tile t = {};
    t.n_rows  = (int) n;
    t.d_k     = d_k_tile;
    t.d_v     = d_v_tile;
    t.q       = s.q;
    t.keys[0] = { n_keys_tile,           visible[0], keys.packed_k,  keys.packed_v };
    t.keys[1] = { h2o_attn_pad(extra.n), visible[1], extra.packed_k, extra.packed_v };
    t.counted = counted;
    t.softcap = softcap;
    t.sinks   = sinks && how == PACKED ? row_sinks : nullptr;
    t.next_k  = next.k;
    t.next_v  = next.v;
    t.n_next  = next.n;
    t.logits  = weights ? weights + row*ld : s.logits;
    t.ld      = ld;
    t.q_pairs = s.q_pairs;
    t.o       = s.o;
    t.m       = s.m;
    t.l       = s.l;
    t.sums    = column_sums;

    bool has_finite_sinks = true;
    for (int r = 0; r < t.n_rows; ++r) {
        const bool is_same_query = r > 0 && (row + r)%group > 0;

        visible[0][r] = is_same_query ? visible[0][r - 1] : n_seen(keys,  row + r);
        visible[1][r] = is_same_query ? visible[1][r - 1] : n_seen(extra, row + r);
        counted   [r] = is_same_query ? counted   [r - 1] : column_sums ? n_counted(row + r, h) : 0;
        q_rows    [r] = q_of(row + r, h);

        float * q_row = s.q + r*d_k_tile;
        std::transform(q_rows[r], q_rows[r] + d_k, q_row, [&](float x) { return scale*x; });
        std::fill(q_row + d_k, q_row + d_k_tile, 0.0f);
        if (t.sinks) {
            row_sinks[r] = sink_of(row + r, h);
            has_finite_sinks &= std::isfinite(row_sinks[r]);
        }
    }

    bool is_done;
    if (how == IN_PLACE) {
        t.k = h2o_attn_in_place(keys.k, keys.n, s.iota, s.k);
        t.v = h2o_attn_in_place(keys.v, keys.n, s.iota, s.v);
        t.next_k.rows = next.k.rows ? next.k.rows : s.iota;
        is_done = kernel.in_place(t);
    } else {
        is_done = has_finite_sinks && visible[0][0] > 0 && kernel.tile(t);
    }
    if (!is_done) {
        h2o_attn_plain_tile(t, keys, extra, q_rows, scale);
        for (int r = 0; weights && r < t.n_rows; ++r) { // divided by l
            float * row_logits = t.logits + r*ld;
            std::transform(row_logits, row_logits + visible[0][r], row_logits, [&](float x) { return x*t.l[r]; });
        }
    }

    for (int r = 0; r < t.n_rows; ++r) {
        fuse(state_of(w, range, h, row + r), d_v, t.o + r*d_v_pad, t.m[r], t.l[r]);
    }
    if (weights) {
        std::copy_n(t.m, t.n_rows, weights + n_rows*ld + row);
    }
}

// A slice of the rows of some lists, or of all rows, and a range of keys.
void h2o_attn_driver::compute_packed(const shared & w, const scratch & s, int64_t h, int64_t item) const {
    float * sums = has_column_sums ? sums_of(w, h, item) : nullptr;
    if (sums) {
        std::fill_n(sums, n_k_pad, 0.0f);
    }

    const int64_t range    = item%n_ranges;
    const int64_t slice    = item/n_ranges%n_slices;
    const int64_t batch    = item/n_ranges/n_slices;
    const int64_t end_list = (batch + 1)*extra.n/n_batches;

    h2o_attn_key_set keys = {};
    if (how == PACKED) {
        keys = packed_keys(w, h);
    }

    h2o_attn_key_set next = {}; // of the next list
    for (int64_t list = batch*extra.n/n_batches; list < end_list; ++list) {
        const int64_t start = extra.start(list)*group;
        const int64_t end   = extra.end(list, n_q)*group;
        const int64_t row   = start + slice*n_tiles(end - start)/n_slices*tile_rows;
        const int64_t stop  = std::min(start + (slice + 1)*n_tiles(end - start)/n_slices*tile_rows, end);
        if (row >= stop) {
            continue;
        }
        clear(w, range, h, row, stop);

        h2o_attn_key_set listed = {};
        if (extra.rows) {
            listed = extra_keys(list, h, 0);
            for (int64_t i = 0; next.n == 0 && i < listed.n; ++i) {
                h2o_attn_prefetch_key(listed, i);
            }
            pack(s, listed, {});

            next = list + 1 < end_list ? extra_keys(list + 1, h, 0) : h2o_attn_key_set {};
        }

        const int64_t n_keys  = n_visible(stop - 1);
        const int64_t end_key = how == PACKED ? n_k : std::min(range_start(range + 1, n_keys), n_keys);
        for (int64_t key = range_start(range, n_keys); key < end_key; key += block_size) {
            if (how == BLOCKS) {
                keys = keys_of(h, key, end_key);
                pack(s, keys, keys_after(keys, range, n_keys, h));
            }
            for (int64_t r = row; r < stop; r += tile_rows) {
                const int64_t n = std::min(tile_rows, stop - r);
                attend(w, s, range, r, n, keys, listed, r + n == stop ? next : h2o_attn_key_set {}, sums);
            }
        }
    }
}

// A block of a list, or a range of blocks.
void h2o_attn_driver::compute_in_place(const shared & w, const scratch & s, int64_t item) const {
    const int64_t n_list_items = extra.n*n_list_blocks;
    const bool    is_list      = item < n_list_items;
    const int64_t list         = is_list ? item/n_list_blocks : 0;
    const int64_t range        = is_list ? n_ranges + item%n_list_blocks : item - n_list_items;
    const int64_t start        = is_list ? extra.start(list)*group : 0; // rows
    const int64_t stop         = is_list ? extra.end(list, n_q)*group : n_rows;
    const int64_t n_keys       = n_visible(n_rows - 1);
    const int64_t end          = is_list ? 1 : std::min(range_start(range + 1, n_keys), n_keys);

    for (int64_t h = 0; h < n_head_kv; ++h) {
        clear(w, range, h, start, stop);
    }

    const auto list_keys = [&](int64_t h) { return extra_keys(list, h, item%n_list_blocks*block_size); };

    for (int64_t key = is_list ? 0 : range_start(range, n_keys); key < end; key += block_size) {
        h2o_attn_key_set keys = is_list ? list_keys(0) : keys_of(0, key, end);
        for (int64_t i = 0; is_list && i < keys.n; ++i) {
            h2o_attn_prefetch_key(keys, i);
        }
        for (int64_t h = 0; h < n_head_kv; ++h) {
            h2o_attn_key_set after = {};
            if (h + 1 < n_head_kv) {
                after = is_list ? list_keys(h + 1) : keys_of(h + 1, key, end);
            } else if (!is_list) {
                after = keys_after(keys, range, n_keys, 0);
            }
            for (int64_t row = start; row < stop; row += tile_rows) {
                attend(w, s, range, row, std::min(tile_rows, stop - row), keys, {}, after, nullptr);
            }
            keys = after;
        }
    }
}

void h2o_attn_driver::add_column_sums(const shared & w, int64_t h, int64_t start, int64_t end) const {
    float * dst = sums + h*n_k;

    std::fill(dst + start, dst + end, 0.0f);
    for (int64_t item = 0; item < n_items; ++item) {
        const float * src = sums_of(w, h, item);
        for (int64_t j = start; j < end; ++j) {
            dst[j] += src[j];
        }
    }
}

void h2o_attn_driver::fuse_ranges(const shared & w, int64_t h, int64_t row) const {
    const state res = state_of(w, 0, h, row);
    for (int64_t range = 1; range < n_ranges + n_list_blocks; ++range) {
        const state other = state_of(w, range, h, row);
        fuse(res, d_v, other.o, *other.m, *other.l);
    }
    if (sinks && sink_of(row, h) != -INFINITY) {
        fuse(res, d_v, nullptr, sink_of(row, h), 1.0f);
    }
}

// Over the heads of the group exp(logit - m_block)*exp(m_block - m)/l.
void h2o_attn_driver::set_query_sums(const shared & w, int64_t h, int64_t query) const {
    float * dst = sums + (query*n_head_kv + h)*n_k;
    std::fill_n(dst, n_k, 0.0f);

    const int64_t n_summed = std::min(n_visible(query*group), n_counted(query*group, h));

    for (int64_t key = 0; key < n_summed; key += block_size) {
        const int64_t n       = std::min(block_size, n_summed - key);
        const float * weights = weights_of(w, h, key);

        for (int64_t row = query*group; row < (query + 1)*group; ++row) {
            const state fused = state_of(w, 0, h, row);
            const float f     = *fused.l == 0.0f ? 0.0f : expf(weights[n_rows*ld + row] - *fused.m) / *fused.l;

            for (int64_t j = 0; j < n; ++j) {
                dst[key + j] += weights[row*ld + j]*f;
            }
        }
    }
}

void h2o_attn_driver::compute(const ggml_compute_params * params, const shared & w, const scratch & s) const {
    const int ith = params->ith;
    const int nth = params->nth;

    for (int64_t first = 0; first < n_head_kv; first += n_round) {
        const int64_t n = std::min(n_round, n_head_kv - first);

        // the heads of a token stand together in the cache
        for (int64_t i = ith; i < n*n_packs; i += nth) {
            h2o_attn_pack_keys(kernel, packed_keys(w, first + i%n), i/n*H2O_ATTN_KEYS, s.rows);
        }

        // a KV head's items in a row, items that see most keys first
        h2o_for_items(params, how == IN_PLACE ? n_items : n*n_items, [&](int64_t i) {
            if (how == IN_PLACE) {
                compute_in_place(w, s, i);
            } else {
                compute_packed(w, s, first + i/n_items, n_items - 1 - i%n_items);
            }
        });
        ggml_barrier(params->threadpool);

        for (int64_t i = ith; has_column_sums && i < n*n_packs; i += nth) {
            const int64_t start = i%n_packs*H2O_ATTN_KEYS;
            add_column_sums(w, first + i/n_packs, start, std::min(start + H2O_ATTN_KEYS, n_k));
        }
    }

    for (int64_t i = ith; how != PACKED && i < n_head_kv*n_q; i += nth) {
        const int64_t h = i/n_q;

        for (int64_t row = i%n_q*group; row < (i%n_q + 1)*group; ++row) {
            fuse_ranges(w, h, row);
        }
        if (has_query_sums) {
            set_query_sums(w, h, i%n_q);
        }
    }
}

size_t ggml_h2o_attn_work_size(const ggml_tensor * dst, int n_threads) {
    return h2o_work_size(h2o_attn_driver(dst, n_threads), n_threads);
}

void ggml_compute_forward_h2o_attn(const ggml_compute_params * params, ggml_tensor * dst) {
    h2o_compute(h2o_attn_driver(dst, params->nth), params);
}
