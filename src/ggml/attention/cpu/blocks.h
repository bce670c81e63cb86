#pragma once

#include "ggml/attention/cpu/plain.h"

struct ggml_compute_params;

// Attention without column sums, the keys in blocks: each block has a softmax of its own, and these are fused. So what is
// needed for it does not grow with the keys.
//
// Sums of each query, which few rows may have: what the softmax of each block leaves is kept, and scaled when all are fused.
//
// Few rows read K and V where they lie; an item of work is a run of blocks, for all KV heads, whose K and V stand
// side by side in the cache. For more rows a block is packed; then an item is a run of blocks for some rows of one KV head.
// Further keys are read in place only: for each list, a block of them is one more item and adds one more run. The runs' results
// are fused in order. None of this depends on the number of threads.
struct h2o_attn_blocks : h2o_attn_args {
    h2o_attn_blocks(const ggml_tensor * dst, const h2o_attn_kernel & kernel, int n_threads);

    // whether this is faster than with packed keys and all logits at once
    static bool is_for(const ggml_tensor * dst);

    size_t size() const { return work_size; } // of the work buffer

    void compute(const ggml_compute_params * params) const;

private:
    struct item {
        int64_t run;
        int64_t head, end_head;
        int64_t row, end_row; // of each head
        int64_t list;         // whose rows are the keys; -1: the heads' own are
    };

    // a thread's
    struct scratch {
        float   * q; // of the item, multiplied by the scale: [heads][rows][d_k]
        float   * logits;
        float   * q_pairs;
        float   * o;
        float   * m;
        float   * l;
        float   * k; // of a block, packed or converted
        float   * v;
        float   * rows; // to be packed
        int32_t * iota;
        int32_t * further; // rows and first queries of a block, for each head
        float     max_q;
    };

    // some of the heads' own keys
    struct block {
        int64_t key;
        int64_t n;
    };

    // keys of a head, and what is read after them
    struct head_keys {
        h2o_attn_plain_keys from;
        int64_t             n;
        int64_t             next_head;
        h2o_attn_rows       next_rows;
        int64_t             n_next;
    };

    scratch get_scratch(h2o_take & take) const;

    item get_item(int64_t i) const;

    void compute_item   (float * work, scratch & s, const item & it) const;
    void compute_own    (float * work, const scratch & s, const item & it, int64_t h, const block & b, const block & after) const;
    void compute_further(float * work, const scratch & s, const item & it) const;

    // a block of a list's rows, but for those that the head has anyway or none of its queries sees
    h2o_attn_further_keys further_block(const scratch & s, const item & it, int64_t h) const;

    // a tile of the item's rows from the row-th on, with all but what its keys are
    h2o_attn_tile get_tile(const scratch & s, const item & it, int64_t h, int64_t row, int64_t n) const;

    // returns what the kernel does
    bool read_in_place(const scratch & s, const h2o_attn_tile & t, int64_t h, const head_keys & keys) const;

    void compute_plain(const h2o_attn_tile & t, int64_t h, int64_t row, const head_keys & keys) const;

    // the results of a tile to those of the run
    void add_results(float * work, const h2o_attn_tile & t, int64_t run, int64_t h, int64_t row) const;

    // of all runs together, for some rows
    void fuse_runs(float * work, int64_t h, int64_t row) const;

    // when its rows are fused: over the heads of the group exp(logit - m_block)*exp(m_block - m)/l
    void set_query_sums(float * work, int64_t h, int64_t query) const;

    // first key of a run for rows that see n_keys
    int64_t run_start(int64_t run, int64_t n_keys) const { return run*h2o_ceil_div(n_keys, block_size)/n_runs*block_size; }

    block block_after(const block & b, int64_t run, int64_t n_keys) const;

    // (o, m, l), a run's result for one row
    float * state(float * work, int64_t run, int64_t h, int64_t row) const {
        return work + ((run*n_head_kv + h)*n_rows + row)*state_size;
    }

    // of a block of a KV head's own keys, with sums: exp(logit - m) of its rows [n_rows][ld], and m [n_rows]
    float * block_weights(float * work, int64_t h, int64_t block) const {
        return work + off_weights + (block*n_head_kv + h)*weights_size;
    }

    const h2o_attn_kernel & kernel;
    const int               n_threads;

    const bool reads_in_place;

    int64_t d_k_pad, d_v_pad;
    int64_t n_rows;      // of a KV head
    int64_t n_parts;     // of these
    int64_t part_size;
    int64_t n_item_rows; // of an item's KV heads together
    int64_t n_runs;      // of blocks
    int64_t n_blocks;    // of the heads' own keys
    int64_t n_further_blocks;
    int64_t block_size;
    int64_t ld;          // of a block's logits
    int64_t state_size;
    int64_t weights_size;

    size_t off_weights;                        // floats
    size_t off_thread, thread_size, work_size; // bytes
};
