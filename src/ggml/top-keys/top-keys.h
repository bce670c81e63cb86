#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// The rows of k that a tile of queries chooses together, for each KV head. Query i is in tile (i + offset)/tile.
//
//   q         F32  [d_k, n_q, n_head], nb[0] == 4
//   k         Q4_0 [d_k, n_k, n_head_kv], n_k > 0, whole rows
//   taken     I32  [n_taken, n_head_kv], nb[0] == 4     rows that are not to be chosen, or no rows, such as -1; NULL: none
//   n_top     at least 1
//   offset    in [0, tile): the first tile has so many queries fewer, the last may have fewer
//   returns   I32  [n_top, ceil((n_q + offset)/tile), n_head_kv]    rows with the highest scores, ascending; -1 at the end where there are fewer
//
// A query's logit of a row is its dot product with the sum of q over the query heads of the KV head's group. The sum is rounded to 8 bits:
// x = round(sum/peak*127), half to even, peak the largest |sum| of the query and head. Per block of 32 numbers the products are summed
// exactly, then scaled and added up in float32, and multiplied by peak/127.
// A tile's score of a row is the largest logit that a query of it has.
// Of equal scores the lower row wins. A query whose sum is not finite, or 0, has no say; a row whose logits are NaN ranks below everything.
//
// The result for a tile does not depend on other tiles.
GGML_API struct ggml_tensor * ggml_h2o_top_keys(
        struct ggml_context * ctx,
        struct ggml_tensor  * q,
        struct ggml_tensor  * k,
        struct ggml_tensor  * taken,
        int                   n_top,
        int                   tile,
        int                   offset);

#ifdef __cplusplus
}
#endif
