#pragma once

#include "ggml/attention/args.h"
#include "ggml/attention/cpu/rows.h"

#include <algorithm>

// Attention of tiles of rows (query, head of the group) to blocks of keys. A KV head's keys are memory keys and chunk
// keys, for all queries; a list has extra keys for a tile of queries. There are two ways:
//
//   packed     An item of work is some of a KV head's rows and a range of its keys, with the lists of the rows. A group
//              of rows attends to one block after the other, with an online softmax. The item packs a list's blocks,
//              and the KV head's if all of its keys would take much room; else they are packed once for all items, in
//              rounds of KV heads. With column sums an item keeps a tile's weights; their sums are added in order at the end.
//   in place   Few rows. Keys are read in the cache, or packed by the item first if they are BYTES. An item is a range of
//              blocks, or a block of a list, for all KV heads, whose rows lie side by side in the cache; for one of them
//              if threads are more than ranges and blocks. Query sums are made of the blocks' saved weights.
//
// The results of ranges, and in place of lists, are fused at the end, in order. None of this depends on the number of
// threads.
struct h2o_attn_driver : h2o_attn_args<int64_t> {
    h2o_attn_driver(const ggml_tensor * dst, int n_threads);

    // all threads'
    struct shared {
        float * q; // in place, [n_head_kv][n_rows]
        float * k; // packed by blocks, [n_round]
        float * v;
        float * sums;    // of items
        float * states;  // of ranges and lists but the first
        float * weights; // of blocks, for query sums: exp(logit - m) [n_rows][ld], m [n_rows]
    };

    // a thread's
    struct scratch {
        float   * q; // of a group of rows, as kernels take it
        float   * o; // likewise, up to n_visible; in place: of all rows of all KV heads
        float   * m;
        float   * l;
        int64_t * n_visible; // of the KV head's keys
        int64_t * visible;   // of the block's, of a tile
        float   * logits;    // of a tile: a block's, with column sums all blocks' of the KV head
        float   * block_m;   // likewise: the blocks' m
        float   * rows;      // to be packed
        float   * k;         // of a block, packed or converted
        float   * v;
    };

    shared  get_shared (h2o_take & arena) const;
    scratch get_scratch(h2o_take & arena) const;

    void compute(const ggml_compute_params * params, const shared & w, const scratch & s) const;

private:
    // a row's result so far: (m, l, o) of an online softmax
    struct state {
        float * o;
        float * m;
        float * l;
    };

    static float over(float x, float l) { return l == 0.0f ? 0.0f : x/l; }

    // adds (m, l, o) of other keys
    static void fuse(const state & a, int64_t d, const float * o, float m, float l);

    state state_of(const shared & w, int64_t range, int64_t h, int64_t row) const;
    float * weights_of(const shared & w, int64_t h, int64_t key) const {
        return w.weights + (key/block_size*n_head_kv + h)*n_rows*(ld + 1);
    }
    float * sums_of(const shared & w, int64_t h,
            int64_t item) const { return w.sums + (h%n_round*n_items + item)*n_k_pad; }

    // The row sees this many keys, the first ones.
    int64_t n_visible(int64_t row) const {
        return first ? std::upper_bound(first, first + n_k, row/group) - first : n_k;
    }

    // The row counts in the sums of this many keys, the first ones.
    int64_t n_counted(int64_t row, int64_t h) const;

    // keys of a list
    int64_t n_listed(int64_t list, int64_t h) const;

    int64_t n_tiles(int64_t rows) const { return h2o_ceil_div(rows, tile_rows); }

    // first key of a range of blocks, for rows that see n_keys
    int64_t range_start(int64_t range, int64_t n_keys) const {
        return range*h2o_ceil_div(n_keys, block_size)/n_ranges*block_size;
    }

    h2o_attn_key_set keys_of   (int64_t h, int64_t key, int64_t end) const;
    h2o_attn_key_set extra_keys(int64_t list, int64_t h, int64_t begin) const;
    h2o_attn_key_set keys_after(const h2o_attn_key_set & keys, int64_t range, int64_t n_keys, int64_t h) const;

    void pack_keys(const scratch & s, h2o_attn_key_set & keys, const h2o_attn_key_set & next) const;

    void clear(const state & x, int64_t range, int64_t h, int64_t row) const;
    void read_queries(float * dst, int64_t h, int64_t row, int64_t n, int64_t d) const;
    void count_visible(const scratch & s, int64_t row, int64_t n) const;

    h2o_attn_tile tile_of(const scratch & s, int64_t i, int64_t n, const h2o_attn_key_set & keys) const;

    // packed
    struct row_group;

    row_group        group_of(int64_t h, int64_t range, int64_t list, int64_t start, int64_t end) const;
    h2o_attn_key_set shared_keys(const shared & w, int64_t h, int64_t key) const;
    h2o_attn_key_set block_of   (const row_group & g, int64_t block) const;
    h2o_attn_key_set pack_block (const scratch & s, const row_group & g, int64_t block) const;

    void compute_packed(const shared & w, const scratch & s, int64_t h, int64_t item) const;
    void attend_group  (const shared & w, const scratch & s, const row_group & g, float * item_sums) const;
    void store_tile    (const shared & w, const scratch & s, const row_group & g, int64_t i, int64_t n,
            float * item_sums) const;
    void add_column_sums(const shared & w, int64_t h, int64_t start, int64_t end) const;

    // in place
    void compute_in_place(const shared & w, const scratch & s, int64_t item, int64_t first_head, int64_t end_head) const;
    void attend_in_place(const shared & w, const scratch & s, int64_t row, int64_t n,
            const h2o_attn_key_set & keys, const h2o_attn_key_set & next) const;
    void set_query_sums(const shared & w, int64_t h, int64_t query) const;

    const h2o_attn_kernel & kernel;
    const int               n_threads;

    const ggml_tensor * k;
    const ggml_tensor * v;

    const int64_t n_rows; // of a KV head

    const bool has_column_sums;
    const bool has_query_sums; // of each query
    const bool is_in_place;
    const bool is_shared; // a KV head's keys are packed once
    const bool is_8_bit;  // keys and values
    const h2o_attn_form form;

    int64_t d_k_tile;    // in place: whole vectors
    int64_t d_v_tile;
    int64_t d_k_pad, d_v_pad, n_k_pad;
    int64_t n_packs;     // of H2O_ATTN_PAD keys, of a KV head
    int64_t block_size;  // keys that a tile attends to at once
    int64_t ld;          // of a tile's logits
    int64_t tile_rows;
    int64_t group_rows;  // that attend to a block one after the other; in place: all
    int64_t n_ranges;    // of blocks
    int64_t n_list_blocks; // in place
    int64_t n_batches;   // of lists
    int64_t n_slices;    // of rows
    int64_t n_items;     // of a KV head; in place: of all
    int64_t n_round;     // KV heads at once
};
