#pragma once

#include "ggml/attention/cpu/lookup.h"
#include "ggml/attention/cpu/plain.h"

#include <algorithm>

struct h2o_attn_packed_lookup : h2o_attn_lookup_keys {
    float        * k; // packed
    float        * v; // packed
    h2o_attn_peaks max;
};

// a thread's scratch
struct h2o_attn_scratch {
    float * rows; // to be packed, while there is no tile
    float * q;
    float * split;
    float * o;
    float * m;
    float * l;
    float * logits;

    h2o_attn_packed_lookup keys;

    // of queries' own keys
    float   * query_o;
    float   * query_k; // converted, of all queries of a tile
    float   * query_v;
    int32_t * iota;

    // of the lookup after that
    const int32_t * next_rows;
    int64_t         n_next;

    // the KV head's own rows with lookups that are not far, a bit for each row of the cache; of no head at first
    uint32_t * own;
    int64_t    own_head;

    bool is_own(int32_t row) const { return own[row/32] >> row%32 & 1; }
};

// One KV head's keys and values, in float32 or split, are packed once per block of queries. Its rows (query, head of the
// group) are cut into tiles, whose logits stay in the L2 cache unless keys are many. Runs of tiles are the items of work: each
// item has column sums of its own, added up in order at the end. None of this depends on the number of threads.
//
// Where queries have lookups, kernel tiles end where lookups do, and an item is made of whole lookups, or of a part of one
// where lookups are few. It gathers and packs a lookup's keys for itself.
//
// Sums of each query are made by kernel tiles that end where queries do, so each item is made of whole queries, which are few.
//
// Where each query has rows of its own, the kernel reads them in place; those of types that it does not know are converted, all of
// a tile at once.
//
// With many keys, the KV heads are computed in rounds, which share the room for packed keys and values.
//
// The plan has the arguments, how they are cut, and where things lie in the work buffer.
struct h2o_attn_plan : h2o_attn_args {
    h2o_attn_plan(const ggml_tensor * dst, const h2o_attn_kernel & kernel, int n_threads);

    const h2o_attn_lookup_args further; // of tiles or queries
    const h2o_attn_lookup_args lookups; // of tiles
    const h2o_attn_kernel    & kernel;

    int64_t d_k_pad, d_v_pad, n_k_pad;
    int64_t n_lookup_pad;
    int64_t n_query;   // rows of each query's own
    int64_t n_queries; // of a tile, at most; 0 without such rows
    int64_t n_converted_k, n_converted_v; // floats
    int64_t n_own;   // words of a KV head's own rows as bits, with lookups
    int64_t n_runs;  // of lookups
    int64_t n_parts; // of a lookup
    int64_t n_items; // of a KV head: runs, or parts of lookups
    int64_t n_units; // of H2O_ATTN_KEYS keys, of a KV head
    int64_t n_query_tiles; // that hold a query's rows and no others; 0: tiles hold as many rows as they can
    int64_t n_round; // KV heads at once
    int64_t ld;      // of a tile's logits

    // offsets into the work buffer, in floats
    int64_t off_k, off_v, off_peaks, off_sums, off_thread, thread_size, size;

    // the work buffer; [n_round] of each
    float * packed_k (float * work, int64_t h) const { return work + off_k + h%n_round*n_k_pad*d_k_pad; }
    float * packed_v (float * work, int64_t h) const { return work + off_v + h%n_round*n_k_pad*d_v_pad; }
    float * item_sums(float * work, int64_t h, int64_t item) const { return work + off_sums + (h%n_round*n_items + item)*n_k_pad; }

    // kernel tiles of n queries, and the first row of one of them, from the queries' first row on
    int64_t n_tiles(int64_t n) const { return n_query_tiles > 0 ? n*n_query_tiles : h2o_attn_ceil_div(n*group, kernel.n_rows); }
    int64_t tile_row(int64_t tile) const {
        return n_query_tiles > 0 ? tile/n_query_tiles*group + tile%n_query_tiles*kernel.n_rows : tile*kernel.n_rows;
    }

    h2o_attn_peaks * unit_peaks(float * work, int64_t h) const { return (h2o_attn_peaks *) (work + off_peaks) + h%n_round*n_units; }

    h2o_attn_scratch thread_scratch(float * work, int ith) const;
};
