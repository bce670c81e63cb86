#pragma once

#include "h2o/sequence/past.h"
#include "h2o/sequence/plan.h"
#include "h2o/sequence/selection.h"
#include "h2o/sequence/state.h"
#include "h2o/text/piece.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

// Columns of a softmax: the memory set's, then the positions [first, first + n).
struct h2o_columns {
    uint32_t n_memory;
    uint32_t first;
    uint32_t n;
};

// A sequence to be restored, without its K and V.
struct h2o_saved_sequence {
    h2o_checkpoint record;

    std::map<uint32_t, h2o_checkpoint> checkpoints; // by position
};

// One text, as the host knows it: its grid of chunks, scores, memory sets and checkpoints. No tensors.
class h2o_sequence {
public:
    // layers: the ones with memory sets
    h2o_sequence(const h2o_config & config, std::vector<h2o_layer> layers);

    const h2o_sequence_state & state() const { return st; }

    h2o_past past() const { return h2o_past(st); }

    void clear();

    // A call has computed n_tokens tokens.
    void add_tokens(uint32_t n_tokens, bool generated);

    // The step is computed next. Lazy build: if it begins a chunk, the memory sets of the one before are built, once, and
    // returned.
    std::optional<h2o_selection> begin_step(const h2o_step & step);

    // Attention that positions have received: sums [n_head_kv, stride]. Generated tokens' sums come token by token.
    void add_scores   (uint32_t layer, const h2o_columns & columns, const float * sums, size_t stride);
    void add_generated(uint32_t layer, const h2o_columns & columns, const float * sums, size_t stride);

    // Keeps the attention of a dense tail to positions before `end`, apart from the scores.
    void add_attention(uint32_t layer, uint32_t end, const float * sums, size_t stride);

    // sets the extra keys of the queries [q0, q1) of one chunk
    void set_extra_keys(uint32_t layer, uint32_t q0, uint32_t q1, const h2o_tile_choice & keys);

    // Builds M_c of the chunk, which may be partial, that ends at chunk_end; returns h2o_selection::from.
    std::vector<uint32_t> build_memory_set(uint32_t layer, uint32_t chunk_end);

    // Replaces the layer's memory set for the chunk that begins at n_tokens, where a chunk must begin; nothing may be
    // evicted. memory [n_head_kv, n], ascending, as many as config.n_memory(n_tokens)
    // Returns whether this has closed the chunk before.
    bool set_memory(uint32_t layer, std::vector<int32_t> memory);

    // A call begins here, within a chunk: the sequence can be cut here. Only where h2o_past::needs_mark().
    void mark(std::shared_ptr<const std::vector<uint8_t>> side);

    // Sets the bytes of the boundary that was closed last. None up to call_start is dropped: the call may still be undone.
    void set_side(std::vector<uint8_t> side, uint32_t call_start);

    // With eviction: copies of the rows of the chunk that begins at `start`, which have moved. Kept if it has marks.
    void set_rows(std::shared_ptr<const h2o_row_copies> rows, uint32_t start);

    // Of more marks, copies of rows and sides the one goes first whose loss costs least: a boundary's side, then the one that
    // is nearest to the one before it. Of sides as many are kept as fit into MAX_SIDE_BYTES, two at least.
    static constexpr size_t MAX_MARKS      = 32;
    static constexpr size_t MAX_ROWS       = 2;
    static constexpr size_t MAX_SIDES      = 8;
    static constexpr size_t MAX_SIDE_BYTES = (size_t) 256 << 20;

    // of this sequence, or of one like it
    void restore(const h2o_checkpoint & record);
    void restore(h2o_saved_sequence saved);

    // becomes a fork of the other one; it must be empty
    void copy_from(const h2o_sequence & src);

    // Another text begins with the first n_kept tokens, and has pieces of this one behind them, from n_kept on, ascending.
    // Their rows are there already. Only without scores and sets by hand.
    void arrange(uint32_t n_kept, const std::vector<h2o_piece> & pieces);

    // tokens up to this position are written: unseen rows in their way are gone
    void drop_unseen(uint32_t end);

    // Scores are kept of the next text, of this one if it is empty, also without heavy hitters.
    void keep_scores(bool keep);

    // checkpoints at the ends of all chunks are kept, not only of the last one
    bool keep_history = false;

    // extra keys of all tiles are kept, not only of the last one
    bool keep_extra_keys = false;

    // dense tails of the next calls are asked for their attention
    bool keep_attention = false;

    void forget_attention();

private:
    std::optional<h2o_selection> close_chunk(uint32_t pos);

    // The next tokens, up to `end`, are generated and scored: each gets a checkpoint before it. The last MAX_GENERATED
    // keep theirs, and so does the first one.
    void begin_generated(uint32_t pos, uint32_t end);

    // generated tokens before pos cannot be undone any more
    void set_generated_start(uint32_t pos);

    void forget_checkpoints();

    void take_over_unseen();

    const h2o_config & config;

    bool wants_scores;

    h2o_sequence_state st;
};
