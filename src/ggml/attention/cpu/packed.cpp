#include "ggml/attention/cpu/packed.h"

#include "ggml-cpu-impl.h"

constexpr int64_t MAX_ITEMS  = 256;         // at least one for each KV head
constexpr int64_t MAX_RUNS   = 128;         // of lists: within a run the next list's keys are asked for in time
constexpr int64_t MIN_ITEMS  = 32;          // with lists, if there are so many tiles
constexpr int64_t MAX_PACKED = 8*1024*1024; // floats of packed K and V, unless one KV head takes more
constexpr int64_t MAX_LOGITS = 8*1024*1024; // floats of a thread, unless a step of rows takes more
constexpr int64_t MAX_SUMS   = 8*1024*1024; // floats of a KV head's items

h2o_attn_packed::h2o_attn_packed(const ggml_tensor * dst, const h2o_attn_kernel & kernel, int n_threads)
    : h2o_attn_args(dst), kernel(kernel) {
    d_k_pad = h2o_attn_pad(d_k);
    d_v_pad = h2o_attn_pad(d_v);
    n_k_pad = h2o_attn_pad(n_k);

    // an odd multiple of 32 floats: rows spread over the sets of the L1 cache
    ld        = h2o_ceil_div(n_k_pad + h2o_attn_pad(further.n_rows), 64)*64 + 32;
    tile_rows = std::clamp<int64_t>(MAX_LOGITS/ld/kernel.row_step*kernel.row_step, kernel.row_step, kernel.n_rows);

    n_key_blocks  = n_k_pad/H2O_ATTN_KEYS;
    n_query_tiles = has_query_sums ? h2o_ceil_div(group, tile_rows) : 0;
    n_list_pad    = h2o_attn_pad(further.n_rows);

    const int64_t max_items = std::max<int64_t>(std::min(MAX_ITEMS/n_head_kv, MAX_SUMS/n_k_pad), 1);

    n_runs   = further ? std::min(further.n, h2o_ceil_div(MAX_RUNS, n_head_kv)) : 1;
    n_slices = further ? h2o_ceil_div(MIN_ITEMS, n_runs*n_head_kv) : max_items;
    n_slices = std::min(n_slices, has_query_sums ? std::min(further.size, n_q) : n_tiles(std::min(further.size, n_q)));
    n_items  = n_runs*n_slices;

    // at least one item for each thread
    n_round = std::max(MAX_PACKED/(n_k_pad*(d_k_pad + d_v_pad)), h2o_ceil_div(n_threads, n_items));
    n_round = std::min(n_round, n_head_kv);

    h2o_take take { nullptr };
    get_shared(take);
    off_thread = take.size;
    get_scratch(take);
    thread_size = take.size - off_thread;
    work_size   = off_thread + n_threads*thread_size;
}

h2o_attn_packed::shared h2o_attn_packed::get_shared(h2o_take & take) const {
    shared w;
    w.k     = take.get<float>(n_round*n_k_pad*d_k_pad);
    w.v     = take.get<float>(n_round*n_k_pad*d_v_pad);
    w.peaks = take.get<h2o_attn_peaks>(n_round*n_key_blocks);
    w.sums  = take.get<float>(has_sums ? n_round*n_items*n_k_pad : 0);
    return w;
}

h2o_attn_packed::scratch h2o_attn_packed::get_scratch(h2o_take & take) const {
    const int64_t n_rows = h2o_ceil_div(tile_rows, kernel.row_step)*kernel.row_step;
    const int64_t n_own  = further.has_first() && !further.has_source ? h2o_ceil_div(k->ne[1], 32) : 0;

    scratch s = {};
    s.q       = take.get<float>(n_rows*d_k_pad);
    s.q_pairs = take.get<float>(n_rows*d_k_pad);
    s.o       = take.get<float>(n_rows*d_v_pad);
    s.m       = take.get<float>(n_rows);
    s.l       = take.get<float>(n_rows);
    s.logits  = take.get<float>(n_rows*ld);
    s.rows    = take.get<float>(H2O_ATTN_KEYS*std::max(d_k_pad, d_v_pad));

    s.further_k     = take.get<float>(n_list_pad*d_k_pad);
    s.further_v     = take.get<float>(n_list_pad*d_v_pad);
    s.further.rows  = take.get<int32_t>(n_list_pad);
    s.further.first = take.get<int32_t>(n_list_pad);

    s.own      = take.get<uint32_t>(n_own);
    s.own_head = -1;

    return s;
}

// whether the head has the list's row among its own keys
bool h2o_attn_packed::is_own(scratch & s, int64_t h, int32_t row) const {
    if (!further.has_first()) {
        return false;
    }
    if (further.has_source) {
        return further.source_is_own(h, row);
    }
    if (s.own_head != h) {
        s.own_head = h;
        std::fill_n(s.own, h2o_ceil_div(k->ne[1], 32), 0);
        const h2o_attn_rows rows = rows_of(h, 0);
        for (int64_t i = 0; i < n_k; ++i) {
            s.own[rows[i]/32] |= uint32_t(1) << rows[i]%32;
        }
    }
    return s.own[row/32] >> row%32 & 1;
}

// What queries before `end` see of a list.
void h2o_attn_packed::gather_list(scratch & s, int64_t h, int64_t list, int64_t end) const {
    const int32_t * rows   = further.rows_of(list, h);
    const int64_t   n_rows = further.n_rows_of(list, h);

    const bool is_asked_for = s.n_next > 0 && s.next_rows == rows;

    s.further.n = 0;
    for (int64_t i = 0; i < n_rows && further.first_query(list, i) < end; ++i) {
        const int64_t first = further.first_query(list, i);
        if (!is_own(s, h, rows[i])) {
            s.further.add(rows[i], first);
            if (!is_asked_for) {
                h2o_attn_prefetch_row(&further.k, rows[i], h);
                h2o_attn_prefetch_row(&further.v, rows[i], h);
            }
        }
    }

    const int64_t n = s.further.n;

    s.further_peaks = { 0.0f, 0.0f };
    for (int64_t key = 0; key < n; key += H2O_ATTN_KEYS) {
        s.further_peaks.add(h2o_attn_pack_keys(kernel, &further.k, &further.v, h, { s.further.rows }, key, n, h2o_attn_pad(n), s.rows,
                s.further_k, s.further_v));
    }
}

// n rows from the row-th on
void h2o_attn_packed::compute_tile(const shared & w, const scratch & s, int64_t h, int64_t row, int64_t n, int64_t block,
        const h2o_attn_peaks & max, float * sums) const {
    int64_t       visible        [H2O_ATTN_MAX_ROWS];
    int64_t       counted        [H2O_ATTN_MAX_ROWS];
    int64_t       further_visible[H2O_ATTN_MAX_ROWS];
    float         sinks          [H2O_ATTN_MAX_ROWS];
    const float * q_rows         [H2O_ATTN_MAX_ROWS];

    h2o_attn_tile t = {};
    t.n_rows  = (int) n;
    t.d_k     = d_k;
    t.d_v     = d_v;
    t.q       = s.q;
    t.own     = { n_k_pad, packed_k(w, h), packed_v(w, h), visible };
    t.counted = counted;
    t.softcap = softcap;
    t.sinks   = has_sinks ? sinks : nullptr;
    t.logits  = s.logits;
    t.ld      = ld;
    t.q_pairs = s.q_pairs;
    t.o       = s.o;
    t.m       = s.m;
    t.l       = s.l;
    t.sums    = sums;

    if (further) {
        t.further = { h2o_attn_pad(s.further.n), s.further_k, s.further_v, further_visible };
        t.n_next  = s.n_next;
        if (s.n_next > 0) {
            h2o_attn_find_source(&further.k, h, { s.next_rows }, nullptr, t.next_k);
            h2o_attn_find_source(&further.v, h, { s.next_rows }, nullptr, t.next_v);
        }
    }

    bool is_tame = true;
    for (int r = 0; r < t.n_rows; ++r) {
        const int64_t i = (row + r)/group;

        visible        [r] = n_visible(row + r);
        counted        [r] = n_counted(row + r, h, block);
        further_visible[r] = s.further.n_visible(i);
        q_rows         [r] = q_of(row + r, h, block);
        scaled_q(row + r, h, block, s.q + r*d_k);
        if (has_sinks) {
            sinks[r] = sink_of(row + r, h);
            is_tame &= std::isfinite(sinks[r]);
        }
    }

    is_tame &= h2o_attn_is_tame(h2o_attn_peak(t.q, t.n_rows*d_k), max, d_k);

    const bool is_done = is_tame && visible[0] > 0 && kernel.tile(t);
    if (!is_done) {
        h2o_attn_plain_tile(t, h, { k, v, rows_of(h, block) }, { &further.k, &further.v, { s.further.rows } }, q_rows, scale);
    }

    for (int r = 0; r < t.n_rows; ++r) {
        store(row + r, h, block, t.o + r*d_v_pad, t.m[r], t.l[r]);
    }
}

void h2o_attn_packed::compute_item(const shared & w, scratch & s, int64_t h, int64_t item, int64_t block) const {
    float * sums = has_sums ? item_sums(w, h, item) : nullptr;
    if (sums) {
        std::fill(sums, sums + n_k_pad, 0.0f);
    }

    h2o_attn_peaks max = { 0.0f, 0.0f };
    for (int64_t i = 0; i < n_key_blocks; ++i) {
        max.add(peaks(w, h)[i]);
    }

    const int64_t run      = item/n_slices;
    const int64_t slice    = item%n_slices;
    const int64_t end_list = (run + 1)*further.n/n_runs;

    s.n_next = 0;
    for (int64_t list = run*further.n/n_runs; list < end_list; ++list) {
        const int64_t start = further.start(list); // queries
        const int64_t end   = further.end(list, n_q);

        // slices are made of tiles, or of queries
        const int64_t step       = std::max<int64_t>(n_query_tiles, 1);
        const int64_t n_steps    = n_tiles(end - start)/step;
        const int64_t first_tile = slice*n_steps/n_slices*step;
        const int64_t end_tile   = (slice + 1)*n_steps/n_slices*step;

        const auto row_of = [&](int64_t tile) { return std::min(start*group + tile_row(tile), end*group); };

        h2o_attn_peaks max_here = max;
        if (further && first_tile < end_tile) {
            gather_list(s, h, list, h2o_ceil_div(row_of(end_tile), group));
            max_here.add(s.further_peaks);
        }

        // asked for by the last tile
        int64_t n_next = 0;
        if (list + 1 < end_list) {
            s.next_rows = further.rows_of(list + 1, h);

            const int64_t next_end = further.end(list + 1, n_q);
            for (const int64_t n = further.n_rows_of(list + 1, h); n_next < n && further.first_query(list + 1, n_next) < next_end; ) {
                ++n_next;
            }
        }

        for (int64_t tile = first_tile; tile < end_tile; ++tile) {
            s.n_next = tile + 1 == end_tile ? n_next : 0;

            const int64_t row = row_of(tile);
            compute_tile(w, s, h, row, std::min(tile_rows, row_of(tile + 1) - row), block, max_here, sums);

            if (has_query_sums && (tile + 1)%n_query_tiles == 0) {
                std::copy(sums, sums + n_k, this->sums + (row/group*n_head_kv + h)*n_k);
                std::fill(sums, sums + n_k_pad, 0.0f);
            }
        }
    }
}

void h2o_attn_packed::add_sums(const shared & w, int64_t h, int64_t block, int64_t start, int64_t end) const {
    float * dst = sums + (block*n_head_kv + h)*n_k;

    std::fill(dst + start, dst + end, 0.0f);
    for (int64_t item = 0; item < n_items; ++item) {
        const float * src = item_sums(w, h, item);
        for (int64_t j = start; j < end; ++j) {
            dst[j] += src[j];
        }
    }
}

void h2o_attn_packed::compute(const ggml_compute_params * params) const {
    const int ith = params->ith;
    const int nth = params->nth;

    char * work = (char *) GGML_PAD((uintptr_t) params->wdata, 64);

    h2o_take of_all { work };
    const shared w = get_shared(of_all);

    h2o_take of_thread { work + off_thread + ith*thread_size };
    scratch s = get_scratch(of_thread);

    for (int64_t block = 0; block < n_block; ++block) {
        for (int64_t first = 0; first < n_head_kv; first += n_round) {
            const int64_t n = std::min(n_round, n_head_kv - first);

            if (ith == 0) {
                ggml_threadpool_chunk_set(params->threadpool, nth);
            }

            // the heads of a token stand together in the cache
            for (int64_t i = ith; i < n*n_key_blocks; i += nth) {
                const int64_t h = first + i%n;
                peaks(w, h)[i/n] = h2o_attn_pack_keys(kernel, k, v, h, rows_of(h, block), i/n*H2O_ATTN_KEYS, n_k, n_k_pad,
                        s.rows, packed_k(w, h), packed_v(w, h));
            }

            ggml_barrier(params->threadpool);

            // the items of a KV head one after another, those that see most keys first
            for (int64_t i = ith; i < n*n_items; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
                compute_item(w, s, first + i/n_items, n_items - 1 - i%n_items, block);
            }

            ggml_barrier(params->threadpool);

            for (int64_t i = ith; has_sums && !has_query_sums && i < n*n_key_blocks; i += nth) {
                const int64_t start = i%n_key_blocks*H2O_ATTN_KEYS;
                add_sums(w, first + i/n_key_blocks, block, start, std::min(start + H2O_ATTN_KEYS, n_k));
            }
        }
    }
}
