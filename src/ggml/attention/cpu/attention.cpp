#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ops.h"

#include "ggml/attention/cpu/blocks.h"
#include "ggml/attention/kernels/isa.h"
#include "ggml/attention/cpu/pack.h"
#include "ggml/attention/cpu/plan.h"
#include "ggml/attention/cpu/rows.h"

#include <algorithm>
#include <cstring>

namespace {

// A plan, carried out.
struct attn : h2o_attn_plan {
    using h2o_attn_plan::h2o_attn_plan;

    void pack(float * work, float * scratch, int64_t h, int64_t unit, int64_t block) const;
    void gather_lookup(h2o_attn_scratch & scratch, int64_t h, int64_t lookup, int64_t start, int64_t end) const;
    h2o_attn_source query_source(const ggml_tensor * t, int64_t h, const int32_t * rows, int64_t n, float * converted, const int32_t * iota) const;
    void compute_tile(float * work, const h2o_attn_scratch & scratch, int64_t h, int64_t row, int64_t n, int64_t block, const h2o_attn_peaks & max, float * sums) const;
    void compute_item(float * work, h2o_attn_scratch & scratch, int64_t h, int64_t item, int64_t block) const;
    void add_sums(float * work, int64_t h, int64_t block, int64_t start, int64_t end) const;
};

void attn::pack(float * work, float * scratch, int64_t h, int64_t unit, int64_t block) const {
    unit_peaks(work, h)[unit] = h2o_attn_pack_keys(kernel, k, v, h, rows_of(h, block), unit*H2O_ATTN_KEYS, n_k, n_k_pad,
            scratch, packed_k(work, h), packed_v(work, h));
}

// What queries [start, end) see of a lookup. All have their places, which do not depend on the queries; what no query sees is
// not packed, or another row in its place.
void attn::gather_lookup(h2o_attn_scratch & scratch, int64_t h, int64_t lookup, int64_t start, int64_t end) const {
    const int32_t * head_rows = rows_of(h, 0);
    const int32_t * rows      = lookups.rows  + lookup*lookups.n_rows;
    const int32_t * first     = lookups.first + lookup*lookups.n_rows;
    const int32_t * last      = lookups.last  + lookup*lookups.n_rows;

    if (scratch.own_head != h && !lookups.is_far()) {
        scratch.own_head = h;
        std::fill(scratch.own, scratch.own + n_own, 0);
        for (int64_t i = 0; i < n_k; ++i) {
            scratch.own[head_rows[i]/32] |= uint32_t(1) << head_rows[i]%32;
        }
    }

    h2o_attn_packed_lookup & keys = scratch.keys;

    const int32_t any_row = lookups.is_far() ? 0 : head_rows[0];

    const bool is_asked_for = scratch.n_next > 0 && scratch.next_rows == rows;

    keys.n = 0;
    for (int64_t i = 0; i < lookups.n_rows && first[i] < end; ++i) {
        const bool is_seen = std::max<int64_t>(first[i], start) < std::min<int64_t>(last[i], end);

        // what is not seen may be anything
        const bool is_row = rows[i] >= 0 && rows[i] < lookups.k()->ne[1];
        const bool is_own = is_row && (lookups.is_far() ? lookups.is_own(h, rows[i]) : scratch.is_own(rows[i]));

        if (!is_own) {
            keys.add(is_seen ? rows[i] : any_row, first[i], last[i]);
            if (is_seen && !is_asked_for) {
                h2o_attn_prefetch_row(lookups.k(), rows[i], h);
                h2o_attn_prefetch_row(lookups.v(), rows[i], h);
            }
        }
    }

    keys.max = { 0.0f, 0.0f };
    for (int64_t key = keys.n_hidden(start)/H2O_ATTN_KEYS*H2O_ATTN_KEYS; key < keys.n; key += H2O_ATTN_KEYS) {
        keys.max.add(h2o_attn_pack_keys(kernel, lookups.k(), lookups.v(), h, keys.rows, key, keys.n, h2o_attn_pad(keys.n), scratch.rows, keys.k, keys.v));
    }
}

// Rows of each query's own where they lie, n of them, or converted if the kernels do not know their type.
h2o_attn_source attn::query_source(const ggml_tensor * t, int64_t h, const int32_t * rows, int64_t n, float * converted, const int32_t * iota) const {
    h2o_attn_source res;
    if (!h2o_attn_find_source(t, h, rows, res)) {
        const int64_t d = t->ne[0];
        for (int64_t i = 0; i < n; ++i) {
            if (rows[i] >= 0) {
                h2o_attn_read_row(t, rows[i], h, converted + i*d);
            }
        }
        res = { converted, (int64_t) (d*sizeof(float)), 0, iota, H2O_ATTN_F32 };
    }
    return res;
}

// n rows from the row-th on
void attn::compute_tile(float * work, const h2o_attn_scratch & scratch, int64_t h, int64_t row, int64_t n, int64_t block, const h2o_attn_peaks & max, float * sums) const {
    const h2o_attn_packed_lookup & keys = scratch.keys;

    int64_t       visible [H2O_ATTN_MAX_ROWS];
    int64_t       counted [H2O_ATTN_MAX_ROWS];
    int64_t       hidden2 [H2O_ATTN_MAX_ROWS];
    int64_t       visible2[H2O_ATTN_MAX_ROWS];
    const float * q_rows  [H2O_ATTN_MAX_ROWS];

    h2o_attn_source next_k = {};
    h2o_attn_source next_v = {};
    if (scratch.n_next > 0) {
        h2o_attn_find_source(lookups.k(), h, scratch.next_rows, next_k);
        h2o_attn_find_source(lookups.v(), h, scratch.next_rows, next_v);
    }

    // each query's own
    const int64_t   first_query = row/group;
    const int64_t   n_query_all = ((row + n - 1)/group + 1 - first_query)*n_query;
    const int32_t * query_rows  = n_query > 0 ? further.rows_of(first_query, h) : nullptr;

    const h2o_attn_tile t = {
        /*.n_rows   =*/ (int) n,
        /*.d_k      =*/ d_k,
        /*.d_v      =*/ d_v,
        /*.n_k      =*/ n_k_pad,
        /*.q        =*/ scratch.q,
        /*.visible  =*/ visible,
        /*.counted  =*/ counted,
        /*.k        =*/ packed_k(work, h),
        /*.v        =*/ packed_v(work, h),
        /*.n_k2     =*/ h2o_attn_pad(keys.n),
        /*.hidden2  =*/ hidden2,
        /*.visible2 =*/ visible2,
        /*.k2       =*/ keys.k,
        /*.v2       =*/ keys.v,
        /*.n_query  =*/ n_query,
        /*.group    =*/ (int) group,
        /*.query_head =*/ (int) (row%group),
        /*.query_k  =*/ query_source(k, h, query_rows, n_query_all, scratch.query_k, scratch.iota),
        /*.query_v  =*/ query_source(v, h, query_rows, n_query_all, scratch.query_v, scratch.iota),
        /*.query_o  =*/ scratch.query_o,
        /*.next_k   =*/ next_k,
        /*.next_v   =*/ next_v,
        /*.n_next   =*/ scratch.n_next,
        /*.logits   =*/ scratch.logits,
        /*.ld       =*/ ld,
        /*.split    =*/ scratch.split,
        /*.o        =*/ scratch.o,
        /*.m        =*/ scratch.m,
        /*.l        =*/ scratch.l,
        /*.sums     =*/ sums,
    };

    for (int r = 0; r < t.n_rows; ++r) {
        const int64_t i = (row + r)/group;

        visible [r] = n_visible(row + r);
        counted [r] = n_counted(row + r, h, block);
        hidden2 [r] = keys.n_hidden(i);
        visible2[r] = n_query > 0 ? further.n_rows_of(i, h) : keys.n_visible(i);
        q_rows  [r] = q_of(row + r, h, block);
        scaled_q(row + r, h, block, scratch.q + r*d_k);
    }

    const bool is_tame = h2o_attn_is_tame(h2o_attn_peak(t.q, t.n_rows*d_k), max, d_k);
    const bool has_d   = n_query == 0 || (d_k % H2O_ATTN_LANES == 0 && d_v % H2O_ATTN_LANES == 0);

    const bool is_done = is_tame && has_d && visible[0] > 0 && kernel.tile(t);
    if (!is_done) {
        const h2o_attn_plain_keys further_keys = n_query > 0 ? h2o_attn_plain_keys { k, v, query_rows } :
            h2o_attn_plain_keys { lookups.k(), lookups.v(), keys.rows };

        h2o_attn_plain_tile(t, h, { k, v, rows_of(h, block) }, further_keys, q_rows, scale);
    }

    for (int r = 0; r < t.n_rows; ++r) {
        store(row + r, h, block, t.o + r*d_v_pad, t.m[r], t.l[r]);
    }
}

void attn::compute_item(float * work, h2o_attn_scratch & scratch, int64_t h, int64_t item, int64_t block) const {
    float * sums = has_sums ? item_sums(work, h, item) : nullptr;
    if (sums) {
        std::fill(sums, sums + n_k_pad, 0.0f);
    }

    h2o_attn_peaks max = { 0.0f, 0.0f };
    for (int64_t u = 0; u < n_units; ++u) {
        max.add(unit_peaks(work, h)[u]);
    }

    const int64_t run  = item/n_parts;
    const int64_t part = item%n_parts;

    const int64_t end_lookup = (run + 1)*lookups.n/n_runs;

    scratch.n_next = 0;
    for (int64_t lookup = run*lookups.n/n_runs; lookup < end_lookup; ++lookup) {
        const int64_t start = lookups.start(lookup); // queries
        const int64_t end   = lookups.end(lookup, n_q);

        // parts are made of tiles, or of queries
        const int64_t step       = std::max<int64_t>(n_query_tiles, 1);
        const int64_t n_steps    = n_tiles(end - start)/step;
        const int64_t first_tile = part*n_steps/n_parts*step;
        const int64_t end_tile   = (part + 1)*n_steps/n_parts*step;

        const auto row_of = [&](int64_t tile) { return std::min(start*group + tile_row(tile), end*group); };

        h2o_attn_peaks max_here = max;
        if (lookups && first_tile < end_tile) {
            gather_lookup(scratch, h, lookup, row_of(first_tile)/group, h2o_attn_ceil_div(row_of(end_tile), group));
            max_here.add(scratch.keys.max);
        }

        // asked for by the last tile
        int64_t n_next = 0;
        if (lookup + 1 < end_lookup) {
            const int32_t * next_first = lookups.first + (lookup + 1)*lookups.n_rows;

            scratch.next_rows = lookups.rows + (lookup + 1)*lookups.n_rows;
            n_next            = std::lower_bound(next_first, next_first + lookups.n_rows, lookups.end(lookup + 1, n_q)) - next_first;
        }

        for (int64_t tile = first_tile; tile < end_tile; ++tile) {
            scratch.n_next = tile + 1 == end_tile ? n_next : 0;

            const int64_t row = row_of(tile);
            compute_tile(work, scratch, h, row, std::min<int64_t>(kernel.n_rows, row_of(tile + 1) - row), block, max_here, sums);

            if (has_query_sums && (tile + 1)%n_query_tiles == 0) {
                std::copy(sums, sums + n_k, this->sums + (row/group*n_head_kv + h)*n_k);
                std::fill(sums, sums + n_k_pad, 0.0f);
            }
        }
    }
}

void attn::add_sums(float * work, int64_t h, int64_t block, int64_t start, int64_t end) const {
    float * dst = sums + (block*n_head_kv + h)*n_k;

    std::fill(dst + start, dst + end, 0.0f);
    for (int64_t item = 0; item < n_items; ++item) {
        const float * src = item_sums(work, h, item);
        for (int64_t j = start; j < end; ++j) {
            dst[j] += src[j];
        }
    }
}

const h2o_attn_kernel & kernel_for(const ggml_tensor * dst) {
    return h2o_attn_kernel_in_use(dst->src[6] != nullptr);
}

} // namespace

size_t ggml_h2o_attn_work_size(const ggml_tensor * dst, int n_threads) {
    if (h2o_attn_blocks::is_for(dst)) {
        return h2o_attn_blocks(dst, kernel_for(dst), n_threads).size*sizeof(float) + 64;
    }
    return attn(dst, kernel_for(dst), n_threads).size*sizeof(float) + 64;
}

void ggml_compute_forward_h2o_attn(const ggml_compute_params * params, ggml_tensor * dst) {
    const int ith = params->ith;
    const int nth = params->nth;

    if (h2o_attn_blocks::is_for(dst)) {
        h2o_attn_blocks(dst, kernel_for(dst), nth).compute(params);
        return;
    }

    const attn a(dst, kernel_for(dst), nth);
    GGML_ASSERT(a.size*sizeof(float) + 64 <= params->wsize);

    float * work = (float *) GGML_PAD((uintptr_t) params->wdata, 64);

    h2o_attn_scratch scratch = a.thread_scratch(work, ith);

    for (int64_t block = 0; block < a.n_block; ++block) {
        for (int64_t first = 0; first < a.n_head_kv; first += a.n_round) {
            const int64_t n = std::min(a.n_round, a.n_head_kv - first);

            if (ith == 0) {
                ggml_threadpool_chunk_set(params->threadpool, nth);
            }

            // the heads of a token stand together in the cache
            for (int64_t i = ith; i < n*a.n_units; i += nth) {
                a.pack(work, scratch.rows, first + i%n, i/n, block);
            }

            ggml_barrier(params->threadpool);

            // the items of a KV head one after another, those that see most keys first
            for (int64_t i = ith; i < n*a.n_items; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
                a.compute_item(work, scratch, first + i/a.n_items, a.n_items - 1 - i%a.n_items, block);
            }

            ggml_barrier(params->threadpool);

            for (int64_t i = ith; a.has_sums && !a.has_query_sums && i < n*a.n_units; i += nth) {
                const int64_t start = i%a.n_units*H2O_ATTN_KEYS;
                a.add_sums(work, first + i/a.n_units, block, start, std::min(start + H2O_ATTN_KEYS, a.n_k));
            }
        }
    }
}
