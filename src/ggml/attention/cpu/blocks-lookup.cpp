// Few queries read the rows of their tile where they lie.

#include "ggml/attention/cpu/blocks.h"

#include "ggml/attention/cpu/rows.h"

// x ascends; no branch depends on it
static bool contains(const int32_t * x, int64_t n, int32_t value) {
    while (n > 1) {
        const int64_t half = n/2;
        x += x[half] <= value ? half : 0;
        n -= half;
    }
    return *x == value;
}

h2o_attn_lookup_keys h2o_attn_blocks::lookup_block(const scratch & s, const item & it, int64_t h) const {
    int32_t * lists = s.lookup + h*3*block_size;

    h2o_attn_lookup_keys res = { 0, lists, lists + block_size, lists + 2*block_size };

    const int64_t start = it.row/group; // queries
    const int64_t end   = it.end_row/group;

    const int32_t * rows  = lookups.rows_of(it.lookup, h);
    const int64_t   begin = (it.run - n_runs)*block_size;

    if (lookups.are_of_queries()) {
        for (int64_t i = begin; i < std::min(begin + block_size, lookups.n_rows_of(it.lookup, h)); ++i) {
            res.add(rows[i], start, end);
        }
        return res;
    }

    const int32_t * first = lookups.first + it.lookup*lookups.n_rows;
    const int32_t * last  = lookups.last  + it.lookup*lookups.n_rows;

    for (int64_t i = begin; i < std::min(begin + block_size, lookups.n_rows) && first[i] < end; ++i) {
        const bool is_seen = std::max<int64_t>(first[i], start) < std::min<int64_t>(last[i], end);
        if (is_seen && !(lookups.is_far() ? lookups.is_own(h, rows[i]) : contains(rows_of(h, 0), n_k, rows[i]))) {
            res.add(rows[i], first[i], last[i]);
        }
    }
    return res;
}

void h2o_attn_blocks::compute_lookup(float * work, const scratch & s, const item & it) const {
    h2o_attn_lookup_keys keys = lookup_block(s, it, 0);
    for (int64_t i = 0; i < keys.n; ++i) {
        h2o_attn_prefetch_row(lookups.k(), keys.rows[i], 0);
    }

    const int n_here = it.end_row - it.row;

    const int64_t nothing[H2O_ATTN_MAX_ROWS] = {};
    int64_t       hidden [H2O_ATTN_MAX_ROWS];
    int64_t       visible[H2O_ATTN_MAX_ROWS];
    const float * q_rows [H2O_ATTN_MAX_ROWS];

    for (int64_t h = 0; h < n_head_kv; ++h) {
        const h2o_attn_lookup_keys next = h + 1 < n_head_kv ? lookup_block(s, it, h + 1) : h2o_attn_lookup_keys {};

        for (int r = 0; r < n_here; ++r) {
            hidden [r] = keys.n_hidden ((it.row + r)/group);
            visible[r] = keys.n_visible((it.row + r)/group);
            q_rows [r] = q_of(it.row + r, h, 0);
        }

        const h2o_attn_tile t = {
            /*.n_rows   =*/ n_here,
            /*.d_k      =*/ d_k,
            /*.d_v      =*/ d_v,
            /*.n_k      =*/ 0,
            /*.q        =*/ s.q + h*n_here*d_k,
            /*.visible  =*/ nothing,
            /*.counted  =*/ nothing,
            /*.k        =*/ nullptr,
            /*.v        =*/ nullptr,
            /*.n_k2     =*/ h2o_attn_pad(keys.n),
            /*.hidden2  =*/ hidden,
            /*.visible2 =*/ visible,
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

        if (keys.n > 0) {
            const h2o_attn_plain_keys here = { lookups.k(), lookups.v(), keys.rows };

            if (!read_in_place(s, t, h, here, keys.n, hidden, visible, { std::min(h + 1, n_head_kv - 1), next.rows, next.n })) {
                h2o_attn_plain_tile(t, h, {}, here, q_rows, scale);
            }
            add_results(work, s, it.run, h, it.row, n_here);
        }
        keys = next;
    }
}
