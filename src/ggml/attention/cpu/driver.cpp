#include "ggml/attention/cpu/driver.h"

#include "ops.h"

#include "ggml/attention/kernels/kernels.h"

constexpr int64_t MAX_IN_PLACE_ROWS = 24;   // of a KV head; from about 26 (2,000 keys) to 32 on, packed keys are faster
constexpr int64_t MAX_SHARED_KEYS   = 4096; // without lists; each group of rows packs more of them for itself

constexpr int64_t PACKED_BLOCK   = 256;         // with its logits it stays in the L2 cache
constexpr int64_t MAX_GROUP_ROWS = 1024;
constexpr int64_t MAX_ITEMS      = 256;         // at least one for each KV head
constexpr int64_t MAX_BATCHES    = 128;
constexpr int64_t MIN_ITEMS      = 32;
constexpr int64_t MAX_RANGES     = 64;          // in place; twice as many give two threads 4 % more work at 31,000 keys
constexpr int64_t MAX_PACKED     = 8*1024*1024; // floats of packed K and V, unless one KV head takes more
constexpr int64_t MAX_LOGITS     = 8*1024*1024; // floats of a thread, unless a step of rows takes more
constexpr int64_t MAX_SUMS       = 8*1024*1024; // floats of a KV head's items

h2o_attn_driver::h2o_attn_driver(const ggml_tensor * dst, int n_threads)
    : h2o_attn_args(dst), kernel(h2o_attn_kernel_in_use()), n_threads(n_threads), k(dst->src[1]), v(dst->src[2]),
      n_rows(n_q*group), has_column_sums(kind_of_sums == GGML_H2O_ATTN_COLUMN_SUMS),
      has_query_sums(kind_of_sums == GGML_H2O_ATTN_QUERY_SUMS),
      is_in_place(has_query_sums || (!has_column_sums && n_rows <= MAX_IN_PLACE_ROWS)),
      is_shared(!is_in_place && (has_column_sums || extra.rows || n_k < MAX_SHARED_KEYS)),
      is_8_bit(k->type == GGML_TYPE_Q8_0 && v->type == GGML_TYPE_Q8_0),
      form(is_8_bit && (is_in_place || !kernel.has_rounded_tiles) ? h2o_attn_form::BYTES :
              is_in_place ? h2o_attn_form::ROWS : h2o_attn_form::PANELS) {
    const int64_t lanes = is_in_place ? H2O_ATTN_LANES : 1;

    d_k_tile = h2o_ceil_div(d_k, lanes)*lanes;
    d_v_tile = h2o_ceil_div(d_v, lanes)*lanes;
    d_k_pad  = h2o_attn_pad(d_k);
    d_v_pad  = h2o_attn_pad(d_v);
    n_k_pad  = h2o_attn_pad(n_k);
    n_packs  = is_shared ? n_k_pad/H2O_ATTN_PAD : 0;

    block_size = form == h2o_attn_form::PANELS ? PACKED_BLOCK : H2O_ATTN_BLOCK_KEYS;

    // an odd multiple of 32 floats: rows spread over the sets of the L1 cache
    ld         = h2o_ceil_div(std::max(block_size, has_column_sums ? n_k_pad : 0), 64)*64 + 32;
    tile_rows  = std::clamp<int64_t>(MAX_LOGITS/ld/kernel.row_step*kernel.row_step, kernel.row_step, kernel.n_rows);
    group_rows = is_in_place ? n_head_kv*n_rows : std::min(MAX_GROUP_ROWS/tile_rows, n_tiles(n_rows))*tile_rows;
    n_batches  = 1;
    n_slices   = 1;
    n_ranges   = 1;

    const int64_t n_blocks = h2o_ceil_div(n_k, block_size);
    if (is_in_place) {
        n_ranges = std::min(std::clamp(n_blocks/2, MIN_ITEMS, MAX_RANGES), n_blocks);
    } else if (is_shared) {
        n_slices = std::max<int64_t>(std::min(MAX_ITEMS/n_head_kv, MAX_SUMS/n_k_pad), 1);
        if (extra.rows) {
            n_batches = std::min(extra.n, h2o_ceil_div(MAX_BATCHES, n_head_kv));
            n_slices  = h2o_ceil_div(MIN_ITEMS, n_batches*n_head_kv);
        }
        n_slices = std::min(n_slices, n_tiles(std::min(extra.tile, n_q)*group));
    } else {
        n_slices = h2o_ceil_div(n_rows, group_rows);
        n_ranges = std::min(h2o_ceil_div(MIN_ITEMS, n_slices*n_head_kv), n_blocks);
    }
    n_list_blocks = is_in_place ? h2o_ceil_div(extra.n_rows, block_size) : 0;
    n_items       = n_batches*n_slices*n_ranges + extra.n*n_list_blocks;

    // at least one item for each thread
    n_round = std::max(MAX_PACKED/(n_k_pad*(d_k_pad + d_v_pad)), h2o_ceil_div(n_threads, n_items));
    n_round = is_shared ? std::min(n_round, n_head_kv) : n_head_kv;
}

h2o_attn_driver::shared h2o_attn_driver::get_shared(h2o_take & arena) const {
    const int64_t n_packed  = n_round*n_packs*H2O_ATTN_PAD;
    const int64_t n_weights = has_query_sums ? h2o_ceil_div(n_k, block_size) : 0;

    shared w;
    w.q       = arena.get<float>(is_in_place ? n_head_kv*n_rows*d_k_tile : 0);
    w.k       = arena.get<float>(n_packed*d_k_pad);
    w.v       = arena.get<float>(n_packed*d_v_pad);
    w.sums    = arena.get<float>(has_column_sums ? n_round*n_items*n_k_pad : 0);
    w.states  = arena.get<float>((n_ranges - 1 + n_list_blocks)*n_head_kv*n_rows*(d_v_pad + 2));
    w.weights = arena.get<float>(n_weights*n_head_kv*n_rows*(ld + 1));
    return w;
}

h2o_attn_driver::scratch h2o_attn_driver::get_scratch(h2o_take & arena) const {
    scratch s;
    s.q         = arena.get<float>(is_in_place ? 0 : group_rows*d_k_pad);
    s.o         = arena.get<float>(group_rows*d_v_pad);
    s.m         = arena.get<float>(group_rows);
    s.l         = arena.get<float>(group_rows);
    s.n_visible = arena.get<int64_t>(group_rows);
    s.visible   = arena.get<int64_t>(tile_rows);
    s.logits    = arena.get<float>(tile_rows*ld);
    s.block_m   = arena.get<float>(has_column_sums ? h2o_ceil_div(n_k, block_size)*tile_rows : 0);
    s.rows      = arena.get<float>(H2O_ATTN_PAD*std::max(d_k_pad, d_v_pad));
    s.k         = arena.get<float>(block_size*d_k_pad);
    s.v         = arena.get<float>(block_size*d_v_pad);
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

// Nothing was seen yet but, in the first range, the sink.
void h2o_attn_driver::clear(const state & x, int64_t range, int64_t h, int64_t row) const {
    std::fill_n(x.o, d_v, 0.0f);
    *x.m = range == 0 && sinks ? sinks[h*group + row%group] : -INFINITY;
    *x.l = *x.m == -INFINITY ? 0.0f : 1.0f;
}

// m = max(m_a, m_b), w_x = l_x*exp(m_x - m), l = w_a + w_b, o = (w_a*o_a + w_b*o_b)/l
void h2o_attn_driver::fuse(const state & a, int64_t d, const float * o, float m, float l) {
    if (l == 0.0f) {
        return;
    }
    const float max = m > *a.m || std::isnan(m) ? m : *a.m;
    const float w_a = *a.l*expf(*a.m - max);
    const float w_b = l   *expf(m    - max);
    const float sum = w_a + w_b;
    const float f_a = w_a/sum;
    const float f_b = w_b/sum;

    for (int64_t i = 0; i < d; ++i) {
        a.o[i] = f_a*a.o[i] + f_b*o[i];
    }
    *a.m = max;
    *a.l = sum;
}

// Multiplied by the scale, in vectors of d numbers; packed if keys are in bytes.
void h2o_attn_driver::read_queries(float * dst, int64_t h, int64_t row, int64_t n, int64_t d) const {
    for (int64_t i = 0; i < n; ++i) {
        const float * q = q_of(row + i, h);
        std::fill(std::transform(q, q + d_k, dst + i*d, [&](float x) { return scale*x; }), dst + (i + 1)*d, 0.0f);
    }
    if (form == h2o_attn_form::BYTES) {
        kernel.pack_byte_q(dst, n, d);
    }
}

void h2o_attn_driver::count_visible(const scratch & s, int64_t row, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) {
        s.n_visible[i] = i > 0 && (row + i)%group > 0 ? s.n_visible[i - 1] : n_visible(row + i);
    }
}

// Rows of the group from the i-th on. Their results are where they are in the group.
h2o_attn_tile h2o_attn_driver::tile_of(const scratch & s, int64_t i, int64_t n, const h2o_attn_key_set & keys) const {
    std::transform(s.n_visible + i, s.n_visible + i + n, s.visible, [&](int64_t n_all) {
        return keys.is_extra ? keys.n : std::clamp<int64_t>(n_all - keys.start, 0, keys.n);
    });

    h2o_attn_tile t = {};
    t.n_rows     = (int) n;
    t.d_k        = d_k_tile;
    t.d_v        = d_v_tile;
    t.q          = s.q + i*d_k_pad;
    t.n_keys     = is_in_place ? keys.n : h2o_attn_pad(keys.n);
    t.visible    = s.visible;
    t.softcap    = softcap;
    t.form       = form;
    t.is_rounded = is_8_bit;
    t.packed_k   = keys.packed_k;
    t.packed_v   = keys.packed_v;
    t.logits     = s.logits + (has_column_sums ? keys.start : 0);
    t.ld         = ld;
    t.o          = s.o + i*d_v_pad;
    t.m          = s.m + i;
    t.l          = s.l + i;
    return t;
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

int64_t h2o_attn_driver::n_listed(int64_t list, int64_t h) const {
    const int32_t * rows = extra.rows_of(list, h);
    return std::partition_point(rows, rows + extra.n_rows, [](int32_t row) { return row >= 0; }) - rows;
}

// A list's next block.
h2o_attn_key_set h2o_attn_driver::extra_keys(int64_t list, int64_t h, int64_t begin) const {
    const int32_t * rows = extra.rows_of(list, h);

    h2o_attn_key_set res = {};
    res.k        = h2o_attn_source_of(k, extra.k, h, rows, begin);
    res.v        = h2o_attn_source_of(v, extra.v, h, rows, begin);
    res.head     = h;
    res.n        = std::clamp<int64_t>(n_listed(list, h) - begin, 0, block_size);
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

// Into the thread's buffers, while the next keys are prefetched.
void h2o_attn_driver::pack_keys(const scratch & s, h2o_attn_key_set & keys, const h2o_attn_key_set & next) const {
    keys.packed_k = s.k;
    keys.packed_v = s.v;
    for (int64_t i = 0; i < keys.n; i += H2O_ATTN_PAD) {
        for (int64_t j = i; j < std::min(i + H2O_ATTN_PAD, next.n); ++j) {
            h2o_attn_prefetch_key(next, j);
        }
        h2o_attn_pack_keys(kernel, form, keys, i, s.rows);
    }
}

int64_t h2o_attn_driver::n_counted(int64_t row, int64_t h) const {
    if (!limits) {
        return n_k;
    }
    const int32_t   limit = limits[row/group];
    const int32_t * list  = rows_of(h);

    return list ? std::upper_bound(list, list + n_k, limit) - list : std::clamp<int64_t>((int64_t) limit + 1, 0, n_k);
}

void h2o_attn_driver::compute(const ggml_compute_params * params, const shared & w, const scratch & s) const {
    const int ith = params->ith;
    const int nth = params->nth;

    for (int64_t first = 0; first < n_head_kv; first += n_round) {
        const int64_t n = std::min(n_round, n_head_kv - first);

        for (int64_t h = ith; is_in_place && h < n_head_kv; h += nth) {
            read_queries(w.q + h*n_rows*d_k_tile, h, 0, n_rows, d_k_tile);
        }
        // the heads of a token stand together in the cache
        for (int64_t i = ith; i < n*n_packs; i += nth) {
            const int64_t key = i/n*H2O_ATTN_PAD;
            h2o_attn_pack_keys(kernel, form, shared_keys(w, first + i%n, key), key%block_size, s.rows);
        }

        // a KV head's items in a row, items that see most keys first
        const int64_t n_parts = n_threads > n_items ? n_head_kv : 1; // of heads, in place
        h2o_for_items(params, n_items*(is_in_place ? n_parts : n), [&](int64_t i) {
            if (is_in_place) {
                const int64_t part = i%n_parts;
                compute_in_place(w, s, i/n_parts, part*n_head_kv/n_parts, (part + 1)*n_head_kv/n_parts);
            } else {
                compute_packed(w, s, first + i/n_items, n_items - 1 - i%n_items);
            }
        });
        ggml_barrier(params->threadpool);

        for (int64_t i = ith; has_column_sums && i < n*n_packs; i += nth) {
            const int64_t start = i%n_packs*H2O_ATTN_PAD;
            add_column_sums(w, first + i/n_packs, start, std::min(start + H2O_ATTN_PAD, n_k));
        }
    }

    for (int64_t i = ith; i < n_head_kv*n_rows; i += nth) {
        const state res = state_of(w, 0, i/n_rows, i%n_rows);
        for (int64_t range = 1; range < n_ranges + n_list_blocks; ++range) {
            const state other = state_of(w, range, i/n_rows, i%n_rows);
            fuse(res, d_v, other.o, *other.m, *other.l);
        }
    }
    if (has_query_sums) {
        ggml_barrier(params->threadpool);
        for (int64_t i = ith; i < n_head_kv*n_q; i += nth) {
            set_query_sums(w, i/n_q, i%n_q);
        }
    }
}

size_t ggml_h2o_attn_work_size(const ggml_tensor * dst, int n_threads) {
    return h2o_work_size(h2o_attn_driver(dst, n_threads), n_threads);
}

void ggml_compute_forward_h2o_attn(const ggml_compute_params * params, ggml_tensor * dst) {
    h2o_compute(h2o_attn_driver(dst, params->nth), params);
}
