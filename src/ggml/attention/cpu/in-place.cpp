#include "ggml/attention/cpu/driver.h"

// n rows from the row-th on
void h2o_attn_driver::attend_in_place(const shared & w, const scratch & s, int64_t row, int64_t n,
        const h2o_attn_key_set & keys, const h2o_attn_key_set & next) const {
    h2o_attn_tile t = tile_of(s, row, n, keys);
    if (t.visible[n - 1] == 0) {
        return;
    }
    float * weights = has_query_sums && !keys.is_extra ? weights_of(w, keys.head, keys.start) : nullptr;

    t.q      = w.q + (keys.head*n_rows + row)*d_k_tile;
    t.logits = weights ? weights + row*ld : s.logits;
    t.next_k = next.k;
    t.next_v = next.v;
    t.n_next = next.n;
    if (form == h2o_attn_form::ROWS) {
        t.k = h2o_attn_rows(kernel, keys.k, keys.n, s.k);
        t.v = h2o_attn_rows(kernel, keys.v, keys.n, s.v);
    }
    kernel.tile(t);
    if (weights) {
        std::copy_n(t.m, n, weights + n_rows*ld + row);
    }
}

// A block of a list, or a range of blocks, for some KV heads.
void h2o_attn_driver::compute_in_place(const shared & w, const scratch & s, int64_t item, int64_t first_head,
        int64_t end_head) const {
    const int64_t n_list_items = extra.n*n_list_blocks;
    const bool    is_list      = item < n_list_items;
    const int64_t list         = is_list ? item/n_list_blocks : 0;
    const int64_t range        = is_list ? n_ranges + item%n_list_blocks : item - n_list_items;
    const int64_t start        = is_list ? extra.start(list)*group : 0; // rows
    const int64_t stop         = is_list ? extra.end(list, n_q)*group : n_rows;
    const int64_t n_keys       = n_visible(n_rows - 1);
    const int64_t end          = is_list ? 1 : std::min(range_start(range + 1, n_keys), n_keys);

    const auto list_keys    = [&](int64_t h) { return extra_keys(list, h, item%n_list_blocks*block_size); };
    const auto rows_of_head = [&](int64_t h) {
        scratch res = s;
        res.o += h*n_rows*d_v_pad;
        res.m += h*n_rows;
        res.l += h*n_rows;
        return res;
    };

    count_visible(s, 0, n_rows);
    for (int64_t h = first_head; h < end_head; ++h) {
        const scratch rows = rows_of_head(h);
        std::fill(rows.o + start*d_v_pad, rows.o + stop*d_v_pad, 0.0f);
        std::fill(rows.m + start, rows.m + stop, -INFINITY);
        std::fill(rows.l + start, rows.l + stop, 0.0f);
    }

    for (int64_t key = is_list ? 0 : range_start(range, n_keys); key < end; key += block_size) {
        h2o_attn_key_set keys = is_list ? list_keys(first_head) : keys_of(first_head, key, end);
        for (int64_t i = 0; is_list && i < keys.n; ++i) {
            h2o_attn_prefetch_key(keys, i);
        }
        for (int64_t h = first_head; h < end_head; ++h) {
            h2o_attn_key_set after = {};
            if (h + 1 < end_head) {
                after = is_list ? list_keys(h + 1) : keys_of(h + 1, key, end);
            } else if (!is_list) {
                after = keys_after(keys, range, n_keys, first_head);
            }
            if (form == h2o_attn_form::BYTES) {
                pack_keys(s, keys, {});
            }
            for (int64_t row = start; row < stop; row += tile_rows) {
                attend_in_place(w, rows_of_head(h), row, std::min(tile_rows, stop - row), keys, after);
            }
            keys = after;
        }
    }
    for (int64_t h = first_head; h < end_head; ++h) {
        const scratch found = rows_of_head(h);
        for (int64_t row = start; row < stop; ++row) {
            const state res = state_of(w, range, h, row);
            clear(res, range, h, row);

            float * o = found.o + row*d_v_pad;
            std::transform(o, o + d_v, o, [f = over(1.0f, found.l[row])](float x) { return f*x; });
            fuse(res, d_v, o, found.m[row], found.l[row]);
        }
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
            const float f     = over(expf(weights[n_rows*ld + row] - *fused.m), *fused.l);

            for (int64_t j = 0; j < n; ++j) {
                dst[key + j] += weights[row*ld + j]*f;
            }
        }
    }
}
