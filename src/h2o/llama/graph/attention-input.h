#pragma once

#include "h2o/graph/build.h"
#include "h2o/llama/memory/step-context.h"

#include "llama-graph.h"

#include <deque>
#include <memory>

// Attention input of an H2O context: stores K and V of an ubatch, and builds the attention of each of its steps.
class h2o_attention_input : public llm_graph_input_attn_kv, public h2o_computed_graph {
public:
    // nullptr if the memory is not H2O's
    static std::unique_ptr<h2o_attention_input> create(ggml_context * ctx, const llama_ubatch & ubatch,
            const llama_hparams & hparams, const llama_cparams & cparams, const llama_kv_cache_context * mctx);

    h2o_attention_input(ggml_context * ctx, const llama_ubatch & ubatch,
            const llama_hparams & hparams, const llama_cparams & cparams, const h2o_step_context * mctx);

    void set_input(const llama_ubatch * ubatch) override;

    bool can_reuse(const llm_graph_params & params) override;

    // The input that builds a layer's attention; nullptr where upstream computes that of generated tokens. k, NULL or the
    // layer's keys, become the numbers to store, before llama.cpp rotates quantized ones.
    static h2o_attention_input * begin_layer(llm_graph_input_attn_kv * inp, ggml_context * ctx, ggml_tensor *& k, int il);

    // The attention of a layer, times its weights wo if there are any; without k and v the layer reads another layer's.
    // With v_mla [n_embd_head_v, n_embd, n_head] the product with that comes first.
    //   q [n_embd_head_k, n_head, n_tokens]
    //   k [n_embd_head_k, n_head_kv, n_tokens], v [n_embd_head_v, n_head_kv, n_tokens]
    ggml_tensor * build_attn(const llm_graph_context & graph, ggml_tensor * wo, ggml_tensor * wo_b, ggml_tensor * wo_s,
            ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * kq_b, ggml_tensor * sinks,
            ggml_tensor * v_mla, float kq_scale, int il);

    // Adds column sums to the scores, and keeps the extra keys that the index chose for steps that say so. keeps_last: for
    // all steps.
    void read_results(ggml_backend_sched_t sched, bool keeps_last) override;

private:
    struct step_t {
        llama_h2o_kv * kv;
        h2o_step_graph graph;
    };

    bool stores_kv() const { return steps.front().graph.step.stores_kv(); }

    // writes the layer's k and v to its cache
    void store(const llm_graph_context & graph, ggml_tensor * k, ggml_tensor * v, int il);

    h2o_memory & memory;

    std::deque<step_t> steps; // of the ubatch, in the order of its tokens

    const llama_kv_cache_context * dense; // of the dense layers' cache; nullptr if there is none

    ggml_tensor * dense_k_idxs = nullptr; // as self_k_idxs
    ggml_tensor * dense_v_idxs = nullptr;
    ggml_tensor * index_rows   = nullptr; // I64 [n_tokens], of the index of keys; nullptr if there is none

    bool has_upstreams_attention = false; // in some layer
    bool was_computed            = false;
};
