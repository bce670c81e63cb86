// Lists of further keys, read where they lie.

#include "ggml/attention/cpu/blocks.h"

// x ascends; no branch depends on it
static bool contains(const int32_t * x, int64_t n, int32_t value) {
    while (n > 1) {
        const int64_t half = n/2;
        x += x[half] <= value ? half : 0;
        n -= half;
    }
    return *x == value;
}

h2o_attn_further_keys h2o_attn_blocks::further_block(const scratch & s, const item & it, int64_t h) const {
    int32_t * keys = s.further + h*2*block_size;

    h2o_attn_further_keys res = { 0, keys, keys + block_size };

    const int64_t end = it.end_row/group; // queries

    const int32_t *     rows  = further.rows_of(it.list, h);
    const int64_t       begin = (it.run - n_runs)*block_size;
    const h2o_attn_rows own   = rows_of(h, 0);

    const int64_t n = std::min(begin + block_size, further.n_rows_of(it.list, h));
    for (int64_t i = begin; i < n && further.first_query(it.list, i) < end; ++i) {
        const bool is_own = further.has_first() && (
            further.has_source ? further.source_is_own(h, rows[i]) :
            own.list           ? contains(own.list, n_k, rows[i]) : rows[i] < n_k);
        if (!is_own) {
            res.add(rows[i], further.first_query(it.list, i));
        }
    }
    return res;
}

void h2o_attn_blocks::compute_further(float * work, const scratch & s, const item & it) const {
    h2o_attn_further_keys keys = further_block(s, it, 0);
    for (int64_t i = 0; i < keys.n; ++i) {
        h2o_attn_prefetch_row(&further.k, keys.rows[i], 0);
    }

    int64_t visible[H2O_ATTN_MAX_ROWS];

    for (int64_t h = 0; h < n_head_kv; ++h) {
        const h2o_attn_further_keys next = h + 1 < n_head_kv ? further_block(s, it, h + 1) : h2o_attn_further_keys {};

        if (keys.n > 0) {
            const head_keys here = {
                { &further.k, &further.v, { keys.rows } }, keys.n, std::min(h + 1, n_head_kv - 1), { next.rows }, next.n,
            };

            h2o_attn_tile t = get_tile(s, it, h, it.row, it.end_row - it.row);
            t.own = { h2o_attn_pad(keys.n), nullptr, nullptr, visible };
            for (int r = 0; r < t.n_rows; ++r) {
                visible[r] = keys.n_visible((it.row + r)/group);
            }

            if (!read_in_place(s, t, h, here)) {
                compute_plain(t, h, it.row, here);
            }
            add_results(work, t, it.run, h, it.row);
        }
        keys = next;
    }
}
