#pragma once

#include "h2o-attention.h"
#include "llama-memory-h2o.h"

#include "llama-graph.h"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

// Attention input of an H2O context: knows which step the graph computes, builds its attention, adds to the scores.
class llm_graph_input_attn_h2o : public llm_graph_input_attn_kv {
public:
    // nullptr if the memory is not H2O's
    static std::unique_ptr<llm_graph_input_attn_h2o> create(
            const llama_hparams & hparams,
            const llama_cparams & cparams,
            const llama_kv_cache_context * mctx,
            uint32_t n_tokens);

    llm_graph_input_attn_h2o(
            const llama_hparams & hparams,
            const llama_cparams & cparams,
            const llama_memory_h2o_context * mctx,
            uint32_t n_tokens);

    void set_input(const llama_ubatch * ubatch) override;

    bool can_reuse(const llm_graph_params & params) override;

    // A layer's attention is built, whose keys k go to the cache. nullptr if upstream's attention is to be built: that of a decode
    // step where H2O's operator is not used.
    static llm_graph_input_attn_h2o * begin_layer(llm_graph_input_attn_kv * inp, const ggml_tensor * k, int il);

    bool stores_kv() const { return step.stores_kv(); }

    // what the graph does to the keys of every layer; it is the same in all graphs of a context
    void learn_ropes() const;

    // attention output [n_embd_head_v*n_head, n_tokens]
    //   q [n_embd_head_k, n_head, n_tokens], k [n_embd_head_k, n_head_kv, n_tokens], v [n_embd_head_v, n_head_kv, n_tokens]
    ggml_tensor * build_attn(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
            ggml_tensor * kq_b, ggml_tensor * sinks, float kq_scale, int il);

private:
    // queries of a run of whole chunks, or of a part of a chunk
    struct run {
        uint32_t pos_k;    // first key of the first chunk
        uint32_t n_k;      // keys of a chunk
        uint32_t offset_q; // first query, in the call
        uint32_t n_q;      // queries of a chunk
        uint32_t n_chunks;
    };

    std::vector<run> runs() const;

    ggml_tensor * build_single_pass(const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il);
    ggml_tensor * build_intra      (const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il);
    ggml_tensor * build_inter      (const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il);
    ggml_tensor * build_tail       (const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il);
    ggml_tensor * build_decode     (const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il);

    // attention of all queries of the step, scored: [n_embd_head_v*n_head, n_tokens]
    ggml_tensor * build_scored(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * rows, float kq_scale, int il);

    // the inputs, made when they are first asked for
    ggml_tensor * get_all_rows(const llm_graph_context & graph, int il);
    void          add_dense_idxs(const llm_graph_context & graph);
    ggml_tensor * get_limits  (const llm_graph_context & graph);
    ggml_tensor * get_first   (const llm_graph_context & graph, int64_t n_k, int64_t n_q, bool is_text);
    ggml_tensor * get_mask    (const llm_graph_context & graph, int64_t n_k, int64_t n_q, bool is_text);
    void          add_tiles   (const llm_graph_context & graph);

    void set_tiles() const;

    // Queries whose looked-up rows the operator packs together: few, as each query brings rows of its own; a multiple of the
    // rows that a kernel holds in registers.
    static constexpr uint32_t TILE_SIZE = 24;

    // Tiles begin with the chunk; those of generated tokens with the step, so that its graph serves the next one.
    bool     has_own_tiles() const { return step.phase == h2o_step::DECODE; }
    uint32_t tile_size()     const { return has_own_tiles() ? std::min(TILE_SIZE, step.n_tokens) : TILE_SIZE; }
    uint32_t tile_offset()   const { return has_own_tiles() ? 0 : step.pos % stream->sequence.config.chunk_size % TILE_SIZE; }

    // the step's tiles look something up: there is something before the chunk
    bool has_tiles() const { return step.n_memory > 0 && stream->sequence.tiles; }

    // q [n_embd_head_k, n_q, n_head, n_block], rows I32 [n_k*n_block, n_head_kv], limits I32 [n_q, n_block] or nullptr
    h2o_attention build_attention(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * rows, ggml_tensor * limits,
            bool causal, float kq_scale, int il);

    // positions before the chunk that a step's queries choose from by the index of keys, their memory sets among them; 0: nothing to choose
    uint32_t n_indexed(const h2o_step & step) const;

    // I32 [n, n_q, n_head_kv]: rows that the queries attend to besides, each its own; nullptr: none
    ggml_tensor * retrieve(const llm_graph_context & graph, ggml_tensor * q, int il) const;

    void add_scores(const llm_graph_context & graph, ggml_tensor * rows, ggml_tensor * sums, int il) const;

    h2o_stream * stream;
    h2o_step     step;
    const bool   fused_attention;
    const bool   flash_attention;

    bool has_fused_attention(int il) const;

    // attention that is not scored is ggml's own operator
    bool has_flash_attention(int il) const;

    // rows that a query does not see may be among the keys
    bool has_padding(int il) const { return has_fused_attention(il) || has_flash_attention(il); }

    uint32_t first_position() const;

    int64_t n_all_rows(bool padded) const;

    // rows before those of the step's own tokens, among those of all positions or of the memory set and the chunk
    int64_t n_past(bool is_text) const {
        return is_text ? step.pos : step.n_memory + step.pos%stream->sequence.config.chunk_size;
    }

    // as upstream's mask: a step's graph serves the next ones, as the text grows
    static constexpr uint32_t DECODE_PADDING = 256;

    // generated tokens attend to the layer's memory set
    bool decodes_memory(int il) const;

    // memory set and open chunk of a decode step, padded
    uint32_t n_decode_rows(const h2o_step & step) const;

    const llama_kv_cache_context * dense; // of the dense layers' cache; nullptr if there is none

    ggml_tensor * dense_k_idxs = nullptr; // as self_k_idxs
    ggml_tensor * dense_v_idxs = nullptr;

    ggml_tensor * all_rows = nullptr; // I32 [n, n_head_kv], for every head those of first_position() ... the end of the step; padding
    ggml_tensor * limits   = nullptr; // I32 [n_tokens]: h2o_scorer::limit() of the queries

    // by [n_k, n_q, whether the rows are those of all positions], I32 [n_k]: which query sees a row first, if the last n_q rows
    // but for padding are the queries' own
    std::map<std::tuple<int64_t, int64_t, bool>, ggml_tensor *> first;
    std::map<std::tuple<int64_t, int64_t, bool>, ggml_tensor *> masks; // by the same, F16 [n_k, n_q]

    ggml_tensor * tile_rows  = nullptr; // I32 [B or fewer, n_tiles]: what the step's tiles look up
    ggml_tensor * tile_first = nullptr; // I32 [the same]: the query of the step that asked for it, n_tokens where there is none
    ggml_tensor * tile_last  = nullptr; // I32 [the same]: the first query that does not see it any more

    std::map<int, const ggml_tensor *> stored_k; // by layer, what goes to the cache

    bool has_size_of_text = false; // something in the graph grows with the sequence
    bool has_memory_rows  = false; // of a decode step: something in the graph grows with the open chunk, by steps of padding
    bool has_exact_rows   = false; // the same, token by token

    bool used = false;
};
