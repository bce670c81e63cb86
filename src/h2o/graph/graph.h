#pragma once

#include "h2o/graph/attention.h"
#include "h2o/graph/plan.h"
#include "h2o/store/stream.h"

#include "llama-graph.h"

#include "ggml/attention/attention.h"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

// The attention of one step of a sequence, as nodes of a graph, and the inputs that they need. It adds to the scores.
class h2o_graph {
public:
    // parts of a cold store that a tail attends to, at most: what is read at once may be a 32nd of one layer
    static constexpr uint32_t MAX_TAIL_PARTS = 32;

    // nodes of a layer beyond those of attention to the cache, at most
    static constexpr uint32_t MAX_STORED_NODES = 32*MAX_TAIL_PARTS;

    // n_kv: rows that a decode step over the whole text reads, padding among them
    h2o_graph(h2o_stream * stream, const h2o_step & step, uint32_t n_kv, bool fused_attention, bool flash_attention);

    void set_input();

    // Whether the graph computes this step too. From now on it is the one whose inputs are set.
    bool can_reuse(const h2o_stream * stream_new, const h2o_step & step_new, uint32_t n_kv_new);

    bool stores_kv() const { return step.stores_kv(); }

    // whether upstream's attention does as well for this layer: that of a decode step where H2O's operator is not used
    bool can_be_upstreams(int il) const { return step.phase == h2o_step::DECODE && !has_fused_attention(il) && !decodes_memory(il) && !stream->dense_cache; }

    // attention output [n_embd_head_v*n_head, n_tokens] of the step's queries [n_embd_head_k, n_head, n_tokens]. Their K and V are stored
    ggml_tensor * build_attn(const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il);

    // tokens of the step
    uint32_t n_tokens() const { return step.n_tokens; }

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
    ggml_tensor * build_stored_tail(const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il);
    ggml_tensor * build_decode     (const llm_graph_context & graph, ggml_tensor * q, float kq_scale, int il);

    // attention of all queries of the step, scored: [n_embd_head_v*n_head, n_tokens]
    ggml_tensor * build_scored(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * rows, float kq_scale, int il);

    // [n_embd, n, n_head_kv] of the positions [first, first + n), brought back from the cold store
    ggml_tensor * fetch_range(const llm_graph_context & graph, h2o_cold_store::part_t part, uint32_t first, uint32_t n, int il);

    // I32 [n, n_head_kv]: 0, 1, ... of at most part_size() rows
    ggml_tensor * get_part_rows(const llm_graph_context & graph, uint32_t n, int il);

    // positions of a part of the cold store
    uint32_t part_size() const;

    // the inputs, made when they are first asked for
    ggml_tensor * get_all_rows(const llm_graph_context & graph, int il);
    ggml_tensor * get_limits  (const llm_graph_context & graph);
    ggml_tensor * get_pending_rows(const llm_graph_context & graph);
    ggml_tensor * get_first   (const llm_graph_context & graph, int64_t n_k, int64_t n_q, bool is_text);
    ggml_tensor * get_mask    (const llm_graph_context & graph, int64_t n_k, int64_t n_q, bool is_text);
    void          add_tiles   (const llm_graph_context & graph);

    void set_tiles() const;

    // with a cold store: the positions that the step's queries see of those looked up, ascending
    std::vector<int32_t> far_positions() const;

    // places for them in a graph that this step is computed by
    uint32_t n_far_max() const;

    // I8, their rows of this layer, see ggml_h2o_attn; nullptr: what is looked up is in the cache
    ggml_tensor * fetch(const llm_graph_context & graph, int il);

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

    void store_pending(const llm_graph_context & graph, ggml_tensor * sums, int il);

    h2o_stream * stream;
    h2o_step     step;
    uint32_t     n_kv;
    bool         fused_attention;
    bool         flash_attention;

    const llama_hparams & hparams;

    bool has_fused_attention(int il) const;

    // attention without column sums is ggml's own operator
    bool has_flash_attention(int il) const;

    // rows that a query does not see may be among the keys
    bool has_padding(int il) const { return has_fused_attention(il) || has_flash_attention(il); }

    uint32_t first_position() const;

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

    ggml_tensor * all_rows = nullptr; // I32 [n, n_head_kv], for every head those of first_position() ... the end of the step; padding
    ggml_tensor * limits   = nullptr; // I32 [n_tokens]: h2o_scorer::limit() of the queries

    ggml_tensor * pending_rows = nullptr; // I32 [n_tokens]: of a decode step's tokens in h2o_layer::pending

    // by [n_k, n_q, whether the rows are those of all positions], I32 [n_k]: which query sees a row first, if the last n_q rows
    // but for padding are the queries' own
    std::map<std::tuple<int64_t, int64_t, bool>, ggml_tensor *> first;
    std::map<std::tuple<int64_t, int64_t, bool>, ggml_tensor *> masks; // by the same, F16 [n_k, n_q]

    ggml_tensor * tile_rows  = nullptr; // I32 [B or fewer, n_tiles]: what the step's tiles look up
    ggml_tensor * tile_queries = nullptr; // I32 [the same, 2]: the query of the step that asked for it, n_tokens where there is none; and the first that does not see it any more

    uint32_t n_far = 0; // rows in what fetch() returns

    // what a fetching node knows
    struct fetch_args {
        h2o_far_rows    * far;
        const h2o_layer * layer;
        uint32_t          n_far;

        ggml_h2o_attn_source_layout at;
    };
    std::vector<std::unique_ptr<fetch_args>> fetches;

    struct fetch_range_args {
        h2o_far_rows         * far;
        size_t                 layer;
        h2o_cold_store::part_t part;
        uint32_t               first;
        uint32_t               n;
    };
    std::vector<std::unique_ptr<fetch_range_args>> range_fetches;

    ggml_tensor * part_rows = nullptr; // I32 [n, n_head_kv]: all rows of a part, by number

    bool has_size_of_text = false; // something in the graph grows with the sequence
    bool has_memory_rows  = false; // of a decode step: something in the graph grows with the open chunk, by steps of padding
    bool has_exact_rows   = false; // the same, token by token

    bool used = false;
};
