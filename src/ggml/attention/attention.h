#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// Which softmax weights are summed. Each is summed over the heads of a KV head, too.
enum ggml_h2o_attn_sums {
    GGML_H2O_ATTN_NO_SUMS     = 0,
    GGML_H2O_ATTN_COLUMN_SUMS = 1, // over the queries that count
    GGML_H2O_ATTN_QUERY_SUMS  = 2, // each query's own, 0 where it does not count: one block only
};

// Views of one F32 tensor. (m, l, o) is an online-softmax state.
struct ggml_h2o_attn_result {
    struct ggml_tensor * o;    // [d_v, n_head, n_q, n_block]   attention output
    struct ggml_tensor * sums; // [n_k, n_head_kv, n_block]     softmax weights, or [n_k, n_head_kv, n_q] if they are each query's own; or NULL
    struct ggml_tensor * m;    // [1, n_q, n_head, n_block]     largest logit
    struct ggml_tensor * l;    // [1, n_q, n_head, n_block]     sum of exp(logit - m)
};

// Attention of queries to keys chosen by index: weights = softmax(scale*q.k) over the visible keys, o = weights*v.
//   q:      F32 [d_k, n_q, n_head, n_block], nb[0] == 4
//   k, v:   [d_k, n_kv, n_head_kv], [d_v, n_kv, n_head_kv], F32 or any type that can be converted to it; whole rows
//   rows:   I32 [n_k, n_head_kv, n_block], nb[0] == 4: rows of k and v, in any order, all in [0, n_kv)
//   first:  I32 [n_k], contiguous, ascending: the first query that sees a row, of every block; NULL: every query sees all rows
//   limits: I32 [n_q, n_block], contiguous, any numbers, or NULL: query i counts in the sum of a key only if the key's row is
//           at most limits[i]. Each head's rows must then be ascending. NULL: every query counts
//   sums:   ggml_h2o_attn_sums; without, limits is NULL
// A query that sees nothing, or whose logits are all -inf: m = -inf, l = 0, o = 0, no weights. NaN is kept. What is not visible has no effect.
//
// With tile_rows there are further rows for each tile of queries, in one softmax with the others. Query i belongs to tile (i + tile_offset)/tile_size.
//   rows:        of one block, each head's ascending
//   tile_rows:   I32 [n_tile_rows, n_tiles], contiguous: rows of k and v for the queries of each tile, the same for all heads, or NULL.
//                n_tiles = ceil((n_q + tile_offset)/tile_size). A tile row that is among a head's rows, seen or not, is ignored for
//                that head: nothing counts twice. Those that a query sees differ from each other
//   tile_first:  I32 [n_tile_rows, n_tiles], contiguous, each tile's ascending: the first query that sees a row. What no query of
//                the tile sees is not read and may be anything: padding has n_q here
//   tile_last:   I32 [n_tile_rows, n_tiles], contiguous, each tile's ascending, any numbers: the first query that does not see a
//                row any more. Query i sees a row if tile_first <= i < tile_last. n_q, for padding too: to the end of the tile
//   tile_size:   of all tiles but the first, which has tile_offset queries less, and the last
//   tile_offset: in [0, tile_size)
//
// Or each query has further rows of its own, other ones for every KV head:
//   rows:        of one block
//   tile_rows:   I32 [n_tile_rows, n_q, n_head_kv], contiguous: query i sees [:, i, h] of KV head h. -1 is no row, and stands at the end
//                of a query's list only. The others differ from each other and from the head's rows, which nobody checks
//   tile_first, tile_last: NULL
//   tile_size:   1
//   tile_offset: 0
//
// With far, tile rows are of tiles, and rows of it in place of k and v:
//   far:   I8 [ggml_h2o_far_offsets().size], contiguous. It holds n_far rows of k, n_far of v, each as long as from row to row of k and v
//          with all heads of it in between, and n_head_kv times ceil(n_far/32) uint32_t, whose bit i%32 of number i/32 says that the
//          head has what row i holds among its own rows. Row 0 is finite
//   n_far: at least 1
// sums are those of rows only; o, m and l are of all that a query sees.
GGML_API struct ggml_h2o_attn_result ggml_h2o_attn(
        struct ggml_context * ctx,
        struct ggml_tensor  * q,
        struct ggml_tensor  * k,
        struct ggml_tensor  * v,
        struct ggml_tensor  * rows,
        struct ggml_tensor  * first,
        struct ggml_tensor  * limits,
        struct ggml_tensor  * tile_rows,
        struct ggml_tensor  * tile_first,
        struct ggml_tensor  * tile_last,
        int                   tile_size,
        int                   tile_offset,
        struct ggml_tensor  * far,
        int                   n_far,
        float                 scale,
        int                   sums);

// Where things lie in far, in bytes.
struct ggml_h2o_far_parts {
    size_t k;
    size_t v;
    size_t own;
    size_t size;
};

GGML_API struct ggml_h2o_far_parts ggml_h2o_far_offsets(const struct ggml_tensor * k, const struct ggml_tensor * v, int64_t n_far);

// The CPU backend's kernels, for tests and benchmarks.
// Name of the i-th that this CPU has, the best one first; NULL after the last.
GGML_API const char * ggml_h2o_attn_isa(int i);

// Use the i-th one from now on, or the first after it that has tile rows where there are any. Not while a graph is being planned or computed. At the start it is the first one.
GGML_API void ggml_h2o_attn_set_isa(int i);

#ifdef __cplusplus
}
#endif
