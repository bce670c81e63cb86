#pragma once

#include "h2o/graph/graph.h"
#include "h2o/llama/memory-context.h"

#include "llama-graph.h"

#include <memory>
#include <vector>

// Attention input of an H2O context: stores the keys and values of an ubatch, and lets each of its steps build its attention.
class llm_graph_input_attn_h2o : public llm_graph_input_attn_kv {
public:
    // nullptr if the memory is not H2O's
    static std::unique_ptr<llm_graph_input_attn_h2o> create(
            const llama_hparams & hparams,
            const llama_cparams & cparams,
            const llama_kv_cache_context * mctx,
            const llama_ubatch & ubatch);

    llm_graph_input_attn_h2o(
            const llama_hparams & hparams,
            const llama_cparams & cparams,
            const llama_memory_h2o_context * mctx,
            const llama_ubatch & ubatch);

    void set_input(const llama_ubatch * ubatch) override;

    bool can_reuse(const llm_graph_params & params) override;

    // A layer's attention is built. nullptr if upstream's attention is to be built.
    static llm_graph_input_attn_h2o * begin_layer(llm_graph_input_attn_kv * inp, int il);

    bool stores_kv() const { return steps.front().stores_kv(); }

    // attention output [n_embd_head_v*n_head, n_tokens]
    //   q [n_embd_head_k, n_head, n_tokens], k [n_embd_head_k, n_head_kv, n_tokens], v [n_embd_head_v, n_head_kv, n_tokens]
    ggml_tensor * build_attn(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
            ggml_tensor * kq_b, ggml_tensor * sinks, float kq_scale, int il);

private:
    // the layer's k and v go to its cache
    void store(const llm_graph_context & graph, ggml_tensor * k, ggml_tensor * v, int il);

    llama_memory_h2o * const memory;

    std::vector<h2o_graph> steps; // of the ubatch, in the order of its tokens

    const llama_kv_cache_context * dense; // of the dense layers' cache; nullptr if there is none

    ggml_tensor * dense_k_idxs = nullptr; // as self_k_idxs
    ggml_tensor * dense_v_idxs = nullptr;

    bool has_upstreams_attention = false; // in some layer
};
