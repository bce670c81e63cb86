#pragma once

#include <cstdint>

struct ggml_context;
struct ggml_tensor;

// Online-softmax state of one block of keys, per query and head (Milakov and Gimelshein 2018, arXiv:1805.02867).
// All F32. An empty block, or one whose keys are all masked for a query, has m = -inf, l = 0, o = 0 there.
struct h2o_softmax_state {
    ggml_tensor * m; // [1,   n_q, n_head, n_c] max of the logits
    ggml_tensor * l; // [1,   n_q, n_head, n_c] sum of exp(logit - m)
    ggml_tensor * o; // [d_v, n_q, n_head, n_c] normalised output
};

// State of the logits scale*kq.
//   kq:      F32 [n_k, n_q, n_head, n_c], contiguous; -inf where a key is masked
//   scale:   > 0
//   v:       [n_k, d_v, n_head_kv, n_c], or a transposed view of that shape if it is not quantised
//   weights: out: the softmax weights [n_k, n_q, n_head, n_c]; all 0 for a query whose keys are all masked
// Expand m into the graph before anything that needs l, o or the weights: then the softmax overwrites kq.
h2o_softmax_state h2o_softmax_state_build(
        ggml_context *  ctx,
        ggml_tensor  *  kq,
        float           scale,
        ggml_tensor  *  v,
        ggml_tensor  ** weights);

// State of two blocks of keys together. An empty block is neutral; one of them has keys for each query, or a sink.
//   m = max(m_a, m_b), w_x = l_x*exp(m_x - m), l = w_a + w_b, o = (w_a*o_a + w_b*o_b)/l
//   share: out: w_a/l, what a's keys have of each query's weight [1, n_q, n_head, n_c]
h2o_softmax_state h2o_softmax_state_fuse(
        ggml_context            *  ctx,
        const h2o_softmax_state &  a,
        const h2o_softmax_state &  b,
        ggml_tensor             ** share = nullptr);

// Attention mass received by each key: the weights summed over the queries and over the query heads of each KV head.
//   weights: F32 [n_k, n_q, n_head, n_c], contiguous
//   share:   [1, n_q, n_head, n_c], contiguous: factor of a query's weights; nullptr: 1
// Returns F32 [n_k, n_head_kv, n_c].
ggml_tensor * h2o_column_sums_build(ggml_context * ctx, ggml_tensor * weights, int64_t n_head_kv,
        ggml_tensor * share = nullptr);

// Computed, not a leaf, so that it takes no room while the rest of the graph is computed.
ggml_tensor * h2o_constant(ggml_context * ctx, float value, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1,
        int64_t ne3 = 1);
