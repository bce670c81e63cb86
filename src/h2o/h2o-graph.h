#pragma once

#include "h2o-gather.h"
#include "llama-kv-cache-h2o.h"

#include "llama-graph.h"

#include <memory>
#include <vector>

// phase 1 computes the queries of a chunk in this many blocks
#define H2O_QUERY_BLOCKS 4

// Attention input of an H2O context: knows which step the graph computes, feeds the memory sets, builds the attention.
class llm_graph_input_attn_h2o : public llm_graph_input_attn_kv {
public:
    // nullptr if the memory is not an H2O cache
    static std::unique_ptr<llm_graph_input_attn_h2o> create(
            const llama_hparams & hparams,
            const llama_cparams & cparams,
            const llama_kv_cache_context * mctx,
            uint32_t n_tokens);

    llm_graph_input_attn_h2o(
            const llama_hparams & hparams,
            const llama_cparams & cparams,
            const llama_kv_cache_h2o_context * mctx,
            uint32_t n_tokens);

    void set_input(const llama_ubatch * ubatch) override;

    bool can_reuse(const llm_graph_params & params) override;

    // nullptr if inp attends densely over the whole cache
    static llm_graph_input_attn_h2o * cast_sparse(llm_graph_input_attn_kv * inp);

    // K/V are written once, in phase 1
    bool stores_kv() const { return step.phase == h2o_step::INTRA; }

    // attention output [n_embd_head_v*n_head, n_tokens]
    //   q [n_embd_head_k, n_head, n_tokens], k [n_embd_head_k, n_head_kv, n_tokens], v [n_embd_head_v, n_head_kv, n_tokens]
    ggml_tensor * build_attn(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
            ggml_tensor * kq_b, ggml_tensor * sinks, float kq_scale, int il);

    // column sums of the computed step onto the scores
    void add_scores(h2o_state & state) const;

private:
    // a block of queries in each of a run of whole chunks, or in a part of a chunk
    struct group {
        uint32_t pos_k;    // first key of the first chunk
        uint32_t n_k;      // keys of a chunk
        uint32_t offset_q; // first query of the first chunk, in the call
        uint32_t n_q;      // queries of a chunk
        uint32_t n_chunks;
    };

    struct column_sums {
        int32_t       il;
        group         keys;
        ggml_tensor * t;   // F32 [n_k, n_head_kv, n_chunks]
    };

    struct memory_input {
        int32_t            il;
        h2o_gather_indices indices;
    };

    std::vector<group> groups() const;

    ggml_tensor * build_intra(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, float kq_scale, int il);
    ggml_tensor * build_inter(const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il);

    ggml_tensor * build_kq(const llm_graph_context & graph, ggml_tensor * k, ggml_tensor * q) const;

    void build_column_sums(const llm_graph_context & graph, ggml_tensor * weights, const group & keys, int il);

    llama_kv_cache_h2o * kv;
    h2o_step step;

    std::vector<column_sums>  colsums;
    std::vector<memory_input> memories;
};

