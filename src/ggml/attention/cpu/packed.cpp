#include "ggml/attention/cpu/driver.h"

// Rows of one list that attend together: to the blocks of the list, then of a range of the KV head's keys.
struct h2o_attn_driver::row_group {
    int64_t h;
    int64_t list;
    int64_t range;
    int64_t start; // rows
    int64_t end;

    int64_t n_keys; // of the KV head, that some row sees
    int64_t n_list_blocks;
    int64_t n_blocks;
};

h2o_attn_driver::row_group h2o_attn_driver::group_of(int64_t h, int64_t range, int64_t list, int64_t start,
        int64_t end) const {
    const int64_t n_keys      = n_visible(end - 1);
    const int64_t key         = range_start(range, n_keys);
    const int64_t end_key     = std::min(range_start(range + 1, n_keys), n_keys);
    const int64_t list_blocks = extra.rows ? h2o_ceil_div(n_listed(list, h), block_size) : 0;

    return { h, list, range, start, end, n_keys, list_blocks, list_blocks + h2o_ceil_div(end_key - key, block_size) };
}

// The block with the key, as it was packed for all items.
h2o_attn_key_set h2o_attn_driver::shared_keys(const shared & w, int64_t h, int64_t key) const {
    h2o_attn_key_set res = keys_of(h, key/block_size*block_size, n_k);
    res.packed_k = w.k + (h%n_round*n_k_pad + res.start)*d_k_pad;
    res.packed_v = w.v + (h%n_round*n_k_pad + res.start)*d_v_pad;
    return res;
}

h2o_attn_key_set h2o_attn_driver::block_of(const row_group & g, int64_t block) const {
    if (block < g.n_list_blocks) {
        return extra_keys(g.list, g.h, block*block_size);
    }
    const int64_t key = range_start(g.range, g.n_keys) + (block - g.n_list_blocks)*block_size;
    return keys_of(g.h, key, std::min(range_start(g.range + 1, g.n_keys), g.n_keys));
}

h2o_attn_key_set h2o_attn_driver::pack_block(const scratch & s, const row_group & g, int64_t block) const {
    h2o_attn_key_set keys = block_of(g, block);
    h2o_attn_key_set after = {};
    if (!keys.is_extra) {
        after = keys_after(keys, g.range, g.n_keys, g.h);
    } else if (block + 1 < g.n_list_blocks) {
        after = block_of(g, block + 1);
    } else if (g.list + 1 < extra.n) {
        after = extra_keys(g.list + 1, g.h, 0);
    }
    pack_keys(s, keys, after);
    return keys;
}

// n rows of the group from the i-th on
void h2o_attn_driver::store_tile(const shared & w, const scratch & s, const row_group & g, int64_t i, int64_t n,
        float * item_sums) const {
    const h2o_attn_tile t = tile_of(s, i, n, {});
    int64_t n_all[H2O_ATTN_MAX_ROWS]; // of all blocks' keys
    for (int r = 0; r < n; ++r) {
        const int64_t row = g.start + i + r;
        const state   res = state_of(w, g.range, g.h, row);
        std::transform(t.o + r*d_v_pad, t.o + r*d_v_pad + d_v, res.o, [f = over(1.0f, t.l[r])](float x) { return f*x; });
        *res.m = t.m[r];
        *res.l = t.l[r];

        n_all[r] = item_sums ? n_counted(row, g.h) : 0;
    }
    for (int64_t key = 0; item_sums && key < g.n_keys; key += block_size) {
        const float * m = s.block_m + key/block_size*tile_rows;

        int64_t counted[H2O_ATTN_MAX_ROWS];
        float   factors[H2O_ATTN_MAX_ROWS];
        for (int r = 0; r < n; ++r) {
            counted[r] = std::clamp<int64_t>(n_all[r] - key, 0, block_size);
            factors[r] = over(expf(m[r] - t.m[r]), t.l[r]);
        }
        kernel.add_sums(tile_of(s, i, n, shared_keys(w, g.h, key)), counted, factors, item_sums + key);
    }
}

void h2o_attn_driver::attend_group(const shared & w, const scratch & s, const row_group & g,
        float * item_sums) const {
    const int64_t n = g.end - g.start;
    read_queries(s.q, g.h, g.start, n, d_k_pad);
    count_visible(s, g.start, n);
    std::fill_n(s.o, n*d_v_pad, 0.0f);
    for (int64_t i = 0; i < n; ++i) {
        clear({ s.o + i*d_v_pad, s.m + i, s.l + i }, g.range, g.h, g.start + i);
    }
    if (form == h2o_attn_form::PANELS) {
        kernel.pack_q(s.q, n, d_k);
    }

    const auto attend = [&](int64_t i, const h2o_attn_key_set & keys) {
        const h2o_attn_tile t = tile_of(s, i, std::min(tile_rows, n - i), keys);
        if (t.visible[t.n_rows - 1] > 0) {
            kernel.tile(t);
        }
    };
    for (int64_t block = 0; block < (is_shared ? g.n_list_blocks : g.n_blocks); ++block) {
        const h2o_attn_key_set keys = pack_block(s, g, block);
        for (int64_t i = 0; i < n; i += tile_rows) {
            attend(i, keys);
        }
    }
    for (int64_t i = 0; i < n; i += tile_rows) {
        for (int64_t key = 0; is_shared && key < g.n_keys; key += block_size) {
            attend(i, shared_keys(w, g.h, key));
            if (item_sums) {
                std::copy_n(s.m + i, std::min(tile_rows, n - i), s.block_m + key/block_size*tile_rows);
            }
        }
        store_tile(w, s, g, i, std::min(tile_rows, n - i), item_sums);
    }
}

// A slice of the rows of some lists, or of all rows, and a range of keys.
void h2o_attn_driver::compute_packed(const shared & w, const scratch & s, int64_t h, int64_t item) const {
    float * item_sums = has_column_sums ? sums_of(w, h, item) : nullptr;
    if (item_sums) {
        std::fill_n(item_sums, n_k_pad, 0.0f);
    }

    const int64_t range    = item%n_ranges;
    const int64_t slice    = item/n_ranges%n_slices;
    const int64_t batch    = item/n_ranges/n_slices;
    const int64_t end_list = (batch + 1)*extra.n/n_batches;

    for (int64_t list = batch*extra.n/n_batches; list < end_list; ++list) {
        const int64_t start = extra.start(list)*group;
        const int64_t end   = extra.end(list, n_q)*group;
        const int64_t row   = start + slice*n_tiles(end - start)/n_slices*tile_rows;
        const int64_t stop  = std::min(start + (slice + 1)*n_tiles(end - start)/n_slices*tile_rows, end);

        for (int64_t r = row; r < stop; r += group_rows) {
            attend_group(w, s, group_of(h, range, list, r, std::min(r + group_rows, stop)), item_sums);
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
