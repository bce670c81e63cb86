#pragma once

#include "h2o/sequence/positions.h"
#include "h2o/sequence/selection.h"
#include "h2o/sequence/state.h"
#include "h2o/store/key-rotor.h"
#include "h2o/store/kv-layer.h"
#include "h2o/store/layout.h"
#include "h2o/store/row-copies.h"
#include "h2o/store/row-mover.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

class h2o_cold_place;
class h2o_cold_store;
class h2o_far_rows;

// K and V of all sequences of a context: which rows hold what, and what has been put aside.
class h2o_kv_store {
public:
    enum part_t { K = 0, V = 1 };

    // place: where evicted rows go; NULL: they are gone
    h2o_kv_store(const h2o_config & config, uint32_t kv_size, uint32_t n_seq, std::vector<h2o_kv_layer> layers,
            const h2o_positions & positions, std::shared_ptr<h2o_cold_place> place);

    ~h2o_kv_store();

    // NULL if the layer has no K and V
    const h2o_kv_layer * layer(int32_t il) const;

    const std::vector<h2o_kv_layer> & layers() const { return all_layers; }

    // what a layer has rows of
    static std::vector<part_t> parts(const h2o_kv_layer & layer);

    // host access to the rows of a sequence
    h2o_kv_rows rows(const h2o_kv_layer & layer, part_t part, uint32_t seq) const;

    // view of them for a graph, [n_embd_head, n, n_head_kv] from row `first` on; n = 0: all of them
    ggml_tensor * view(ggml_context * ctx, const h2o_kv_layer & layer, part_t part, uint32_t seq, uint32_t first = 0, uint32_t n = 0) const;

    // How a layer's keys are rotated, if they are: to be said before any key is moved to another position.
    void set_rope(int32_t il, const h2o_rope & rope) { ropes[il] = rope; }

    // throws std::runtime_error if keys are to be moved to other positions, and this model or a device cannot
    void check_ropes(const std::vector<ggml_backend_t> & backends) const;

    // Compact layout: a chunk was closed, which has led to this state. Its rows go to the cold store, those of the memory sets to their
    // places. backends: move rows where the host cannot reach them, and rotate keys. Throws std::runtime_error if there is no room.
    void apply(uint32_t seq, const h2o_selection & selection, const h2o_sequence_state & state, const std::vector<ggml_backend_t> & backends);

    // Compact layout: rows of the memory sets, with keys as written, and of the chunk [start, end), as in a state.
    h2o_row_copies kept_rows(uint32_t seq, uint32_t start, uint32_t end) const;

    // Compact layout: copies of all rows that the next chunk moves.
    h2o_row_copies copy_rows(uint32_t seq, const h2o_sequence_state & state) const;

    // Compact layout: rows of the memory sets of an earlier boundary, out of the cold store; none if they have not moved since.
    // Throws std::runtime_error if it cannot be read.
    std::optional<h2o_row_copies> read_moved(uint32_t seq, const h2o_checkpoint & checkpoint) const;

    // Compact layout: restores the rows of an earlier state. rows: none if they have not moved since. backends: rotate
    // the keys again; empty if rotated keys are among the rows.
    void go_back(uint32_t seq, const h2o_sequence_state & state, const std::optional<h2o_row_copies> & rows,
            const std::vector<ggml_backend_t> & backends);

    // nothing is in a sequence's rows from this one on: their memory goes back until they are written
    void release(uint32_t seq, uint32_t first) const;

    // a fork: the rows of `from`, whose state this is
    void copy(uint32_t from, uint32_t to, const h2o_sequence_state & state);

    // float32 [n_head_kv, p1 - p0, n_embd_head] of positions, NaN where one is gone. Throws std::runtime_error if the cold store
    // cannot be read.
    void read(uint32_t seq, const h2o_sequence_state & state, const h2o_kv_layer & layer, part_t part, uint32_t p0, uint32_t p1, float * dst) const;

    // bytes of a row of all layers; of those that have memory sets, or of the dense ones
    uint64_t row_bytes(bool dense) const;

    // of all rows of a sequence that are ever used
    uint64_t n_bytes() const;

    // NULL if evicted rows are gone
    h2o_cold_store * cold(uint32_t seq) const { return put_aside[seq].cold.get(); }
    h2o_far_rows   * far (uint32_t seq) const { return put_aside[seq].far.get(); }

    const h2o_layout    layout;
    const h2o_positions positions;

private:
    // of one sequence
    struct aside {
        std::unique_ptr<h2o_cold_store> cold;
        std::unique_ptr<h2o_far_rows>   far;
    };

    // compact layout: where a part of the n positions in the memory set of a chunk is as it was written
    uint32_t written_row(part_t part, uint32_t n, uint32_t chunk_start) const {
        return part == K && positions.is_moved(chunk_start) ? layout.first_written_row(n) : layout.first_row(n);
    }

    // the keys of the memory sets are rotated to where the open chunk wants them
    void move_keys(uint32_t seq, const h2o_sequence_state & state, const std::vector<ggml_backend_t> & backends);

    uint32_t n_rows_of(const h2o_kv_layer & layer) const { return layer.is_dense() ? layout.kv_size : layout.n_rows(); }

    void read_memory_rows(uint32_t seq, const std::vector<int32_t> & memory, const h2o_kv_layer & layer, part_t part,
            uint8_t * dst) const;

    const h2o_config & config;

    std::vector<h2o_kv_layer> all_layers;
    std::vector<aside>        put_aside; // by sequence

    std::map<int32_t, h2o_rope> ropes; // by layer

    h2o_row_mover mover;
    h2o_key_rotor rotor;
};
