#pragma once

#include "h2o/store/cold-store.h"
#include "h2o/config/config.h"
#include "h2o/store/kv-rows.h"
#include "h2o/sequence/layer.h"
#include "h2o/sequence/layout.h"
#include "h2o/store/row-mover.h"
#include "h2o/text/tiles.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

// What a sequence's tokens from n_tokens on can change of what is known about those before: to go back there.
struct h2o_record {
    struct layer {
        uint32_t n_built;

        std::vector<int32_t> memory;        // h2o_layer::memory
        std::vector<float>   memory_scores; // of the memory set [n_head_kv, M]
        std::vector<float>   scores;        // of the positions from first on [n_head_kv, n_tokens - first]
        std::vector<float>   pending;       // what generated tokens give to them, of the memory set and the open chunk [n_head_kv, M + ...]; or empty

        std::vector<uint8_t> k; // rows of the memory set and of the chunk after it; empty if they are not to be evicted
        std::vector<uint8_t> v;
    };

    uint32_t n_tokens;
    uint32_t n_scored;
    uint32_t first;

    std::vector<layer> layers;
};

// What H2O knows about one sequence: its grid of chunks, which rows of the cache hold it, scores, memory sets, counters.
//
// A call (a prefill, or a decode step) is a transaction: begin_call, changes, then end_call or rollback.
class h2o_sequence {
public:
    struct layer_dims {
        int32_t  il;
        uint32_t n_head;
        uint32_t n_head_kv;

        ggml_backend_dev_t device;
    };

    // throws std::runtime_error if there is not enough memory
    h2o_sequence(const h2o_config & config, uint32_t kv_size, const std::vector<layer_dims> & dims);

    void clear();

    uint32_t n_tokens() const { return n_tok; }

    // chunks begun = ceil(n_tokens/S)
    uint32_t chunk_index() const { return (n_tok + config.chunk_size - 1)/config.chunk_size; }

    // first position of the open chunk; a complete one is open until its memory set is built
    uint32_t open_start() const { return std::max(chunk_start_of(n_tok), n_memory_sets()*config.chunk_size); }

    // a token at this position closes the open chunk
    uint32_t open_end() const { return (n_memory_sets() + 1)*config.chunk_size; }

    uint32_t n_memory_sets() const;

    // NULL if il has no K/V in the cache
    h2o_layer       * layer(int32_t il);
    const h2o_layer * layer(int32_t il) const { return const_cast<h2o_sequence *>(this)->layer(il); }

    // score of every position so far [n_head_kv, n_tokens]; NaN if it is evicted
    std::vector<float> scores(const h2o_layer & layer) const;

    // positions of the current memory set [n_head_kv, M], ascending, -1 padded
    std::vector<int32_t> memory(const h2o_layer & layer) const;

    // the same of M_c, an earlier one; empty if it was not recorded
    std::vector<int32_t> history(const h2o_layer & layer, uint32_t chunk) const;

    // score of position start + i += colsum[i], colsum [n_head_kv, n]
    void add_chunk_scores(h2o_layer & layer, uint32_t start, uint32_t n, const float * colsum);

    // score of memory[i] += colsum[i], colsum [n_head_kv, M]
    void add_memory_scores(h2o_layer & layer, const float * colsum);

    // M_c of the chunk that ends at chunk_end, out of the current memory set and the chunk
    void build_memory_set(h2o_layer & layer, uint32_t chunk_end);

    // Replaces the layer's memory set for the chunk that begins at n_tokens(), where a chunk must begin; others are built.
    // Nothing may be evicted.
    // memory [n_head_kv, M], ascending positions, -1 padded, as many as config.n_memory(n_tokens())
    void set_memory(h2o_layer & layer, const int32_t * memory);

    // Nothing is in the rows from this one on: their memory goes back until they are written.
    void release_rows(uint32_t first) const;

    // lazy build: if position pos begins a chunk, its predecessor's memory set is built, once. Returns whether it was.
    bool begin_chunk(uint32_t pos);

    // all_scores: attention to any position may be scored
    void begin_call(uint32_t n_tokens, bool all_scores);
    void end_call(uint32_t n_tokens, bool scored);
    void rollback();

    // Generated tokens [pos, pos + n), MAX_PENDING or fewer, are computed next: makes room for what they give to the scores.
    void begin_generated(uint32_t pos, uint32_t n);

    // What generated tokens give is added to the scores.
    void settle();

    // generated tokens are scored
    bool has_pending() const { return config.decode == LLAMA_H2O_DECODE_MEMORY; }

    // Tokens from this position on can be taken back one by one. Attention that was added to the scores cannot: then it is the end.
    uint32_t rewind_limit() const;

    // pos is at least rewind_limit(), or before all that is pending, or a boundary whose record is there
    bool can_rewind(uint32_t pos) const;

    // Takes back the tokens from pos on.
    // Returns false, and has changed nothing, if it cannot.
    bool rewind(uint32_t pos);

    // of chunks, by chunk: what has been kept to go back to
    const std::map<uint32_t, h2o_record> & chunk_records() const { return records; }

    // the same of a sequence that was restored: as many as would have been kept here
    void set_chunk_records(std::map<uint32_t, h2o_record> chunk_records);

    // with_kv: K and V of the memory set and the open chunk too; the layout is compact
    h2o_record record(uint32_t first, bool with_kv = false) const { return record_until(n_tok, first, with_kv); }

    // The same without the open chunk's tokens from `end` on. What they have added to scores stays in it.
    h2o_record record_until(uint32_t end, uint32_t first, bool with_kv) const;

    // the record is of this sequence, or of one like it that has the same K and V, or has them with it
    void restore(const h2o_record & record);

    // becomes a copy of src, of the same context, whose K and V are copied already; it must be empty
    void copy_from(const h2o_sequence & src);

    const h2o_config config;

    const h2o_layout layout;

    std::vector<h2o_layer> layers;

    std::unique_ptr<h2o_tiles> tiles; // with a lookup budget and retrieval by n-grams

    std::unique_ptr<h2o_cold_store> cold; // K and V of the closed chunks, if evicted ones go there

    bool keep_records = false; // of all chunks, not only of the last one

    llama_h2o_stats stats = {};

    // Of the context, the CPU's last: its threads build the memory sets of several layers at a time. None: one thread does.
    std::vector<ggml_backend_t> backends;

    // K and V of a layer. For the compact layout, whose rows move.
    std::function<h2o_kv_rows(int32_t il)> k_rows;
    std::function<h2o_kv_rows(int32_t il)> v_rows;

private:
    // first position of the chunk, perhaps partial, that ends at chunk_end
    uint32_t chunk_start_of(uint32_t chunk_end) const { return chunk_end == 0 ? 0 : config.chunk_start(chunk_end - 1); }

    bool is_open(uint32_t pos) const;
    void truncate_text();
    void forget_records();

    h2o_record::layer record_layer(const h2o_layer & layer, uint32_t end, uint32_t first, bool with_kv) const;

    // What the tokens [n_scored, end) give to the memory set and the open chunk up to there, [n_head_kv, M + ...]. Empty: nothing
    std::vector<float> pending_sums(const h2o_layer & layer, uint32_t end) const;

    void set_folded (const h2o_layer & layer, const std::vector<float> & sums) const;
    void add_pending(const h2o_layer & layer, const std::vector<float> & sums) const; // to the scores

    void restore_pending(const h2o_record & record);

    // begin of the chunk after the layer's memory set
    uint32_t next_chunk_start(const h2o_layer & layer) const { return layer.n_built*config.chunk_size; }

    // The memory set of the chunk that begins at chunk_start. It is of positions of the memory set before it and of the chunk
    // after that one, if some are evicted.
    void set_memory_set(h2o_layer & layer, std::vector<int32_t> memory, uint32_t chunk_start);

    void forget_scores(const h2o_layer & layer) const;

    // compact layout: K, V and scores of this memory set to its rows, none to those of the next chunk
    void move_rows(h2o_layer & layer, const std::vector<int32_t> & memory, uint32_t chunk_start) const;

    // K and V of the layers where that is left to the device
    void move_on_devices(const std::vector<h2o_layer *> & layers);

    // the layer's rows: those of its memory set, and of the chunk that begins at chunk_start
    void write_rows(const h2o_layer & layer, uint32_t chunk_start) const;

    // rows of the compact layout in use
    uint32_t first_row(const h2o_layer & layer) const;
    uint32_t end_row(uint32_t end) const { return layout.row_of(open_start()) + end - open_start(); }

    h2o_kv_rows rows_of(const h2o_layer & layer, h2o_cold_store::part_t part) const;

    // compact layout: K and V of the chunk after the memory sets to the cold store
    void store_chunk();

    // a record of a boundary gets K and V of its memory sets, whose rows have moved since
    void read_moved(h2o_record & record) const;

    void set_scores_of(h2o_scores & scores, const h2o_layer & layer, uint32_t p0, uint32_t p1, const float * values) const;

    h2o_buffers buffers;

    uint32_t n_tok    = 0;
    uint32_t n_scored = 0; // the tokens before this one have changed scores

    // see h2o-sequence-pending.cpp; n_scored where no generated token is scored
    uint32_t n_folded    = 0;
    uint32_t n_generated = 0;

    uint32_t n_end    = 0; // no position from here on has a score: n_tok, or the end of the call

    std::map<uint32_t, h2o_record> records; // by chunk: when the chunk after it begins

    std::unique_ptr<h2o_record> undo; // of the call

    h2o_row_mover mover;
};
