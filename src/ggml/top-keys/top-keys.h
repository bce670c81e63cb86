#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// The rows of k that a tile of queries chooses together, for each KV head. Query i is in tile (i + offset)/tile.
//
//   q         F32  [d_k, n_q, n_head], nb[0] == 4
//   k         Q4_0 or Q8_0 [d_k, n_k, n_head_kv], n_k > 0, whole rows; CUDA has Q4_0 only
//   excluded  I32  [n_excluded, n_head_kv], nb[0] == 4     rows not to choose; -1 stands for no row; NULL: none
//   n_top     at least 1
//   offset    in [0, tile): the first tile has offset queries fewer, the last may have fewer
//   returns   I32  [n_top, ceil((n_q + offset)/tile), n_head_kv]    rows with the highest scores, ascending, then -1
//
// A query's logit of a row is its dot product with the sum of q over the query heads of the KV head's group. The sum is
// rounded to 8 bits: x = round(sum/peak*127), half to even, peak the largest |sum| of the query and head. Numbers of
// k in 8 bits are rounded to 4: min(floor(8.5 - 8*x/top), 15) - 8, times -top/8, top the number in the block with the
// largest |x|, the negative one of two. Per block of 32 numbers the products are summed exactly, then scaled and added
// up in float32, and multiplied by peak/127. A tile's score of a row is the largest of its queries' logits, each less an offset of its query: the 90th percentile, or 0 if
// that is not finite, of the query's logits of a sample, the rows 0, n_k/n, 2*(n_k/n), ... (n = min(n_k, 256) of them).
// So a query that hardly tells rows apart has a say as well. Of equal scores the lower row wins. A query whose sum is 0
// or not finite does not count; a row whose logits are NaN ranks below all others.
//
// The result for a tile does not depend on other tiles.
GGML_API struct ggml_tensor * ggml_h2o_top_keys(
        struct ggml_context * ctx,
        struct ggml_tensor  * q,
        struct ggml_tensor  * k,
        struct ggml_tensor  * excluded,
        int                   n_top,
        int                   tile,
        int                   offset);

#ifdef __cplusplus
}
#endif
