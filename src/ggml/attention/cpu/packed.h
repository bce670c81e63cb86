#pragma once

#include "ggml/attention/cpu/plain.h"

struct ggml_compute_params;

// One KV head's keys and values, in float32 or split, are packed once per block of queries. Its rows (query, head of the
// group) are cut into tiles, whose logits stay in the L2 cache unless keys are many. Some tiles are an item of work: each
// item has column sums of its own, added up in order at the end. None of this depends on the number of threads.
//
// With lists of further keys, tiles of rows end where the lists' tiles of queries do, and an item is made of whole lists, or of a slice of
// one where lists are few. It gathers and packs a list's keys for itself.
//
// Sums of each query are made by tiles that end where queries do, so each item is made of whole queries, which are few.
//
// With many keys, the KV heads are computed in rounds, which share the room for packed keys and values.
struct h2o_attn_packed : h2o_attn_args {
    h2o_attn_packed(const ggml_tensor * dst, const h2o_attn_kernel & kernel, int n_threads);

    size_t size() const { return work_size; } // of the work buffer

    void compute(const ggml_compute_params * params) const;

private:
    // a thread's
    struct scratch {
        float * q;
        float * q_pairs;
        float * o;
        float * m;
        float * l;
        float * logits;
        float * rows; // to be packed

        // of the list whose queries are computed
        h2o_attn_further_keys further;
        float               * further_k; // packed
        float               * further_v;
        h2o_attn_peaks        further_peaks;

        // of the list after that
        const int32_t * next_rows;
        int64_t         n_next;

        // the KV head's own rows, a bit for each row of the cache; of no head at first
        uint32_t * own;
        int64_t    own_head;
    };

    // all threads'; [n_round] of each
    struct shared {
        float          * k; // packed
        float          * v;
        h2o_attn_peaks * peaks; // of H2O_ATTN_KEYS keys each
        float          * sums;  // of items
    };

    shared  get_shared (h2o_take & take) const;
    scratch get_scratch(h2o_take & take) const;

    float * packed_k (const shared & w, int64_t h) const { return w.k + h%n_round*n_k_pad*d_k_pad; }
    float * packed_v (const shared & w, int64_t h) const { return w.v + h%n_round*n_k_pad*d_v_pad; }
    float * item_sums(const shared & w, int64_t h, int64_t item) const { return w.sums + (h%n_round*n_items + item)*n_k_pad; }

    h2o_attn_peaks * peaks(const shared & w, int64_t h) const { return w.peaks + h%n_round*n_key_blocks; }

    // tiles of n queries, and the first row of one of them, from the queries' first row on
    int64_t n_tiles(int64_t n) const { return n_query_tiles > 0 ? n*n_query_tiles : h2o_ceil_div(n*group, tile_rows); }
    int64_t tile_row(int64_t tile) const {
        return n_query_tiles > 0 ? tile/n_query_tiles*group + tile%n_query_tiles*tile_rows : tile*tile_rows;
    }

    bool is_own(scratch & s, int64_t h, int32_t row) const;

    void gather_list (scratch & s, int64_t h, int64_t list, int64_t end) const;
    void compute_item(const shared & w, scratch & s, int64_t h, int64_t item, int64_t block) const;
    void compute_tile(const shared & w, const scratch & s, int64_t h, int64_t row, int64_t n, int64_t block, const h2o_attn_peaks & max,
            float * sums) const;
    void add_sums(const shared & w, int64_t h, int64_t block, int64_t start, int64_t end) const;

    const h2o_attn_kernel & kernel;

    int64_t d_k_pad, d_v_pad, n_k_pad;
    int64_t tile_rows;
    int64_t n_list_pad;    // rows of a list
    int64_t n_runs;        // of lists
    int64_t n_slices;      // of a list
    int64_t n_items;       // of a KV head: runs, or slices of lists
    int64_t n_key_blocks;  // of a KV head
    int64_t n_query_tiles; // that hold a query's rows and no others; 0: tiles hold as many rows as they can
    int64_t n_round;       // KV heads at once
    int64_t ld;            // of a tile's logits

    size_t off_thread, thread_size, work_size; // bytes
};
