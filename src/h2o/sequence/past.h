#pragma once

#include "h2o/sequence/state.h"

#include <cstdint>
#include <memory>
#include <vector>

// Positions at which a text can be cut, and the checkpoints to restore there.
class h2o_past {
public:
    explicit h2o_past(const h2o_sequence_state & state) : st(state), config(*state.config) {}

    // The sequence can be cut at every `rewind_step` positions of a chunk, with eviction of the open one. 0: scores, or
    // a memory set by hand, forbid it.
    uint32_t rewind_step() const;

    // pos is on the grid of rewind_step(), or later tokens changed no score and closed no chunk, or it has a checkpoint
    bool can_rewind(uint32_t pos) const;

    // what to restore for a rewind to pos
    h2o_checkpoint checkpoint_of(uint32_t pos) const;

    // Positions at which a sequence that is restored from this one's state can be cut, ascending.
    std::vector<uint32_t> state_points() const;

    // A checkpoint at pos is that of a scored generated token. Saved states leave these out.
    bool is_generated(uint32_t pos) const {
        return st.scores_generated() && pos > st.generated_start && pos % config.chunk_size != 0;
    }

    // the checkpoint's bytes of other layers, NULL if there are none
    std::shared_ptr<const std::vector<uint8_t>> side_of(uint32_t pos) const;

    // The largest position up to pos that may be possible: a checkpoint's, or any one where none are needed.
    uint32_t nearest(uint32_t pos) const;

    // A call's start within a chunk needs a checkpoint: not where positions tell as much. has_side: other layers have
    // bytes there.
    bool needs_mark(bool has_side) const { return has_side || config.evict || rewind_step() == 0; }

    // the chunk that begins at `start` has checkpoints within it
    bool has_marks(uint32_t start) const;

    // the checkpoint at a position of the grid of rewind_step(), or at any one if rows have moved
    h2o_checkpoint record_at(uint32_t pos) const;

private:
    bool is_on_grid(uint32_t pos) const;
    bool is_open   (uint32_t pos) const;
    bool has_rows  (const h2o_checkpoint & checkpoint) const;

    // first position of no closed chunk
    uint32_t closed_end() const { return st.n_memory_sets()*config.chunk_size; }

    const h2o_sequence_state & st;
    const h2o_config         & config;
};
