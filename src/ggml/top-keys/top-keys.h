#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// The rows of k that each query would give most of its attention, for each KV head.
//
//   q         F32  [d_k, n_q, n_head], nb[0] == 4
//   k         Q4_0 [d_k, n_k, n_head_kv], n_k > 0, whole rows
//   taken     I32  [n_taken, n_head_kv], nb[0] == 4     rows that are not to be chosen, or no rows, such as -1; NULL: none
//   n_top     at least 1
//   scale     of a logit, q*k*scale; 0: heads of a group are not weighed
//   returns   I32  [n_top, n_q, n_head_kv]              rows with the highest scores, ascending; -1 at the end where there are fewer
//
// The score of a row is its dot product with the sum of q over the query heads of the KV head's group. The sum is rounded to 8 bits:
// x = round(sum/peak*127), half to even, peak the largest |sum| of the query and head. Per block of 32 numbers the products are summed
// exactly, then scaled and added up in float32. A sum that is not finite scores NaN with all rows.
// Of equal scores the lower row wins, NaN ranks below everything.
//
// The sum says little of heads that look for different things. So with a scale, and heads that share a KV head, the scores choose eight times as
// many candidates, and of these the n_top with the most attention win: the softmax over the candidates, summed over the heads, each of
// whose queries is rounded alone. If it is not finite, the scores decide.
//
// The result for a query does not depend on the other queries.
GGML_API struct ggml_tensor * ggml_h2o_top_keys(
        struct ggml_context * ctx,
        struct ggml_tensor  * q,
        struct ggml_tensor  * k,
        struct ggml_tensor  * taken,
        int                   n_top,
        float                 scale);

#ifdef __cplusplus
}
#endif
