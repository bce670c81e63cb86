#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// The rows of k that each query would give most of its attention, for each KV head.
//   q:     F32 [d_k, n_q, n_head], nb[0] == 4
//   k:     Q4_0 [d_k, n_k, n_head_kv], nb[0] that of the type, n_k > 0
//   taken: I32 [n_taken, n_head_kv], nb[0] == 4: rows that are not to be chosen. Entries that are no rows, such as -1, say nothing. Or NULL
//   n_top: at least 1
// Returns I32 [n_top, n_q, n_head_kv]: the n_top rows with the highest scores, ascending; -1 at the end where there are
// fewer. Of equal scores the lower row wins, NaN ranks below everything.
//
// The score of a row is the dot product of the sum of q over the query heads of the KV head's group with the row. The sum is
// rounded to 8 bits: x = round(sum/peak*127), half to even, peak the largest |sum| of the query and head. Per block of 32
// numbers the products are summed exactly, then scaled and added up in float32. A sum that is not finite scores NaN with all rows.
// The result for a query does not depend on the other queries. The CPU's kernel is the one for the same CPUs as that of
// ggml_h2o_attn in use.
GGML_API struct ggml_tensor * ggml_h2o_top_keys(
        struct ggml_context * ctx,
        struct ggml_tensor  * q,
        struct ggml_tensor  * k,
        struct ggml_tensor  * taken,
        int                   n_top);

#ifdef __cplusplus
}
#endif
