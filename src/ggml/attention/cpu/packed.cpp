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
    const int64_t list_blocks = extra.rows ? h2o_ceil_div(n_listed(list, h), list_block) : 0;

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
        return extra_keys(g.list, g.h, block*list_block);
    }
    const int64_t key = range_start(g.range, g.n_keys) + (block - g.n_list_blocks)*block_size;
    return keys_of(g.h, key, is_shared ? n_k : std::min(range_start(g.range + 1, g.n_keys), g.n_keys));
}

// Into the thread's buffers, unless all items share it. The keys that are read after these are prefetched.
h2o_attn_key_set h2o_attn_driver::pack_block(const shared & w, const scratch & s, const row_group & g,
        int64_t block) const {
    h2o_attn_key_set keys = block_of(g, block);
    if (!keys.is_extra && is_shared) {
        return shared_keys(w, g.h, keys.start);
    }
    h2o_attn_key_set after = {};
    if (!keys.is_extra) {
        after = keys_after(keys, g.range, g.n_keys, g.h);
    } else if (block + 1 < g.n_list_blocks) {
        after = block_of(g, block + 1);
    } else if (g.list + 1 < extra.n) {
        after = extra_keys(g.list + 1, g.h, 0);
    }
    keys.packed_k = s.k;
    keys.packed_v = s.v;
    for (int64_t i = 0; i < keys.n; i += H2O_ATTN_PAD) {
        for (int64_t j = i; j < std::min(i + H2O_ATTN_PAD, after.n); ++j) {
            h2o_attn_prefetch_key(after, j);
        }
        h2o_attn_pack_keys(kernel, keys, i, s.rows);
    }
    return keys;
}

void h2o_attn_driver::store_tile(const shared & w, const row_group & g, int64_t row, const h2o_attn_tile & t,
        float * item_sums) const {
    int64_t counted[H2O_ATTN_MAX_ROWS];
    float   factors[H2O_ATTN_MAX_ROWS];

    for (int r = 0; r < t.n_rows; ++r) {
        const state res = state_of(w, g.range, g.h, row + r);
        std::copy_n(t.o + r*d_v_pad, d_v, res.o);
        *res.m = t.m[r];
        *res.l = t.l[r];

        counted[r] = item_sums ? n_counted(row + r, g.h) : 0;
        factors[r] = t.l[r] == 0.0f ? 0.0f : 1.0f/t.l[r];
    }
    if (item_sums) {
        kernel.add_sums(t, counted, factors, item_sums);
    }
}

void h2o_attn_driver::attend_group(const shared & w, const scratch & s, const row_group & g,
        float * item_sums) const {
    const int64_t n = g.end - g.start;
    read_queries(s, g.h, g.start, n, d_k_pad);
    std::fill_n(s.o, n*d_v_pad, 0.0f);
    for (int64_t i = 0; i < n; ++i) {
        clear({ s.o + i*d_v_pad, s.m + i, s.l + i }, g.range, g.h, g.start + i);
    }
    (in_bytes ? kernel.pack_byte_q : kernel.pack_q)(s.q, n, d_k);

    for (int64_t block = 0; block < std::max<int64_t>(g.n_blocks, 1); ++block) {
        const h2o_attn_key_set keys = block < g.n_blocks ? pack_block(w, s, g, block) : h2o_attn_key_set {};

        for (int64_t i = 0; i < n; i += tile_rows) {
            const h2o_attn_tile t = tile_of(s, i, std::min(tile_rows, n - i), keys);
            if (t.visible[t.n_rows - 1] > 0) {
                kernel.tile(t);
            }
            if (block + 1 < g.n_blocks) {
                continue;
            }
            kernel.finish(t);
            store_tile(w, g, g.start + i, t, keys.is_extra ? nullptr : item_sums);
        }
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
