#pragma once

#include "h2o/sequence/plan.h"
#include "h2o/sequence/selection.h"
#include "h2o/sequence/state.h"

#include <cstdint>
#include <map>
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

    std::optional<std::map<uint32_t, h2o_checkpoint>> checkpoints; // by position
    std::optional<std::vector<int32_t>>               text;        // ids of its tokens
    std::optional<h2o_lookup_log>                     lookups;

    uint32_t lookup_start = 0; // what queries before it have looked up is not kept
};

// One text, as the host knows it: its grid of chunks, scores, memory sets and checkpoints. No tensors.
class h2o_sequence {
public:
    // layers: the ones with memory sets
    h2o_sequence(const h2o_config & config, std::vector<h2o_layer> layers);

    const h2o_sequence_state & state() const { return st; }

    void clear();

    // A call has computed n_tokens tokens.
    void add_tokens(uint32_t n_tokens, bool generated);

    // The step is computed next. ids: its tokens, none if an earlier step had them.
    // Lazy build: if it begins a chunk, the memory sets of the one before are built, once, and returned.
    std::optional<h2o_selection> begin_step(const h2o_step & step, const std::vector<int32_t> & ids);

    // Attention that positions have received: sums [n_head_kv, stride]. Generated tokens' sums come token by token.
    void add_scores   (uint32_t layer, const h2o_columns & columns, const float * sums, size_t stride);
    void add_generated(uint32_t layer, const h2o_columns & columns, const float * sums, size_t stride);

    // sets the extra keys of the queries [q0, q1) of one chunk
    void set_extra_keys(uint32_t layer, uint32_t q0, uint32_t q1, const h2o_tile_choice & keys);

    // The layer's memory set is of the chunk before, or of the beginning of the one that ends at chunk_end: no gap.
    bool can_build_memory_set(uint32_t layer, uint32_t chunk_end) const;

    // Builds M_c of the chunk, which may be partial, that ends at chunk_end; returns h2o_selection::from.
    std::vector<uint32_t> build_memory_set(uint32_t layer, uint32_t chunk_end);

    // Replaces the layer's memory set for the chunk that begins at n_tokens, where a chunk must begin; nothing may be
    // evicted. memory [n_head_kv, n], ascending, as many as config.n_memory(n_tokens)
    void set_memory(uint32_t layer, std::vector<int32_t> memory);

    // Nothing of the past changes later, neither scores nor memory sets: the sequence can be cut at every
    // `rewind_step` positions of a chunk, with eviction of the open one. 0: it cannot.
    uint32_t rewind_step() const;

    // pos is on the grid of rewind_step(), or the tokens after it have left no trace, or it has a checkpoint
    bool can_rewind(uint32_t pos) const;

    // Positions at which a sequence that is restored from this one's state can be cut, ascending.
    std::vector<uint32_t> state_points() const;

    // the checkpoint to restore for that, if one is needed
    std::optional<h2o_checkpoint> checkpoint_of(uint32_t pos) const;

    // The checkpoint here lets a generated token be undone. A state has none of these.
    bool is_generated(uint32_t pos) const { return pos > st.generated_start && pos % config.chunk_size != 0; }

    // A prompt continues here, within a chunk: the sequence can be cut here, with eviction until the chunk is closed.
    // Of more than MAX_MARKS such positions the first ones, where a document may end, and the last ones are kept. Only
    // where scores need it.
    void mark();

    static constexpr size_t MAX_MARKS = 8;

    // Sets the bytes of the boundary that was closed last; and returns a boundary's bytes, NULL if they were dropped.
    // The first boundary and the latest ones keep theirs: as many as fit into MAX_SIDE_BYTES, two at least and
    // MAX_SIDES at most. None up to call_start is dropped: the call may still be undone.
    void set_side(std::vector<uint8_t> side, uint32_t call_start);

    static constexpr size_t MAX_SIDES      = 8;
    static constexpr size_t MAX_SIDE_BYTES = (size_t) 256 << 20;

    const std::vector<uint8_t> * side_of(uint32_t pos) const;

    // Takes back the tokens from pos on where that needs no checkpoint, and unfinished additions after the last token.
    void rewind(uint32_t pos);

    // A checkpoint without the open chunk's tokens from `end` on, but with their scores. first: see h2o_checkpoint
    h2o_checkpoint record(uint32_t end, uint32_t first) const;

    // of this sequence, or of one like it
    void restore(const h2o_checkpoint & record);
    void restore(h2o_saved_sequence saved);

    // becomes a fork of the other one; it must be empty
    void copy_from(const h2o_sequence & src) { st = src.st; }

    // Scores are kept of the next text, of this one if it is empty, also without heavy hitters.
    void keep_scores(bool keep);

    // checkpoints at the ends of all chunks are kept, not only of the last one
    bool keep_history = false;

    // likewise
    bool keep_extra_keys = false;

private:
    std::optional<h2o_selection> close_chunk(uint32_t pos);

    // generated tokens change scores
    bool scores_generated() const { return st.is_scored && config.decode == LLAMA_H2O_DECODE_MEMORY; }

    // The next tokens, up to `end`, are generated and scored: each gets a checkpoint before it. The last MAX_GENERATED
    // keep theirs, and so does the first one.
    void begin_generated(uint32_t pos, uint32_t end);

    // generated tokens before pos cannot be undone any more
    void set_generated_start(uint32_t pos);

    h2o_checkpoint::layer record(const h2o_layer & layer, uint32_t end, uint32_t first) const;

    // the checkpoint at a position of the grid of rewind_step()
    h2o_checkpoint record_at(uint32_t pos) const;

    void forget_checkpoints();
    void forget_sides(uint32_t after); // of boundaries after this position
    void truncate_text();

    bool is_on_grid (uint32_t pos) const;
    bool is_open    (uint32_t pos) const;
    bool is_recorded(uint32_t pos) const;

    const h2o_config & config;

    bool wants_scores;

    h2o_sequence_state st;
};
