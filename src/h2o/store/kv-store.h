#pragma once

#include "h2o/sequence/positions.h"
#include "h2o/sequence/selection.h"
#include "h2o/sequence/state.h"
#include "h2o/store/kv-layer.h"
#include "h2o/store/layout.h"
#include "h2o/store/row-copies.h"
#include "h2o/store/row-mover.h"
#include "h2o/text/piece.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

class h2o_cold_place;
class h2o_cold_store;
class h2o_key_index;

// K and V of all sequences of a context: their rows in the cache, and evicted rows in the cold store.
class h2o_kv_store {
public:
    // place: of evicted rows; NULL: they are dropped
    h2o_kv_store(const h2o_config & config, uint32_t kv_size, uint32_t n_seq, std::vector<h2o_kv_layer> layers,
            const h2o_positions & positions, std::shared_ptr<h2o_cold_place> place);

    ~h2o_kv_store();

    // NULL if the layer has no K and V
    const h2o_kv_layer * layer(int32_t il) const;

    const std::vector<h2o_kv_layer> & layers() const { return all_layers; }

    using part_of_layer = std::pair<const h2o_kv_layer *, h2o_kv_part>;

    // K and V of every layer; with MLA K alone
    const std::vector<part_of_layer> & parts() const { return all_parts; }

    // host access to the rows of a sequence
    h2o_kv_rows rows(const h2o_kv_layer & layer, h2o_kv_part part, uint32_t seq) const;

    // view of them for a graph, [n_embd_head, n, n_head_kv] from row `first` on; n = 0: all of them
    ggml_tensor * view(ggml_context * ctx, const h2o_kv_layer & layer, h2o_kv_part part, uint32_t seq,
            uint32_t first = 0, uint32_t n = 0) const;

    // how the layers' keys are rotated; to be set before any key is moved to another position
    void set_rope(int32_t il, const std::optional<h2o_rope> & rope) {
        if (rope) {
            ropes.insert_or_assign(il, *rope);
        }
    }

    // throws std::runtime_error if this model or a device cannot move keys to other positions
    void check_ropes(const h2o_key_index * index, const std::vector<ggml_backend_t> & backends) const;

    // Full layout: pieces of the text come to other positions, in all layers and in the index, if there is one. Throws
    // std::runtime_error; then rows are at either place.
    void move(uint32_t seq, const std::vector<h2o_piece> & pieces, const h2o_key_index * index,
            const std::vector<ggml_backend_t> & backends);

    // Compact layout, after a chunk was closed: writes its rows to the cold store, and moves the memory sets' rows.
    // backends: move rows that the host cannot reach, and rotate keys. Throws std::runtime_error without room.
    void apply(uint32_t seq, const h2o_selection & selection, const h2o_sequence_state & state,
            const std::vector<ggml_backend_t> & backends);

    // Compact layout: rows of the memory sets, with keys as written, and of the chunk [start, end), as in a state.
    // with_moved: and of the keys where they have moved to
    h2o_row_copies kept_rows(uint32_t seq, uint32_t start, uint32_t end, bool with_moved = false) const;

    // Compact layout: rows for an earlier checkpoint, its copies or out of the cold store; none if they have not moved
    // since. Throws std::runtime_error if it cannot be read. The checkpoint lives longer.
    std::optional<h2o_row_copies> moved_rows(uint32_t seq, const h2o_checkpoint & checkpoint) const;

    // Compact layout: restores the rows of an earlier state. rows: NULL if they have not moved since. backends: rotate
    // the keys again; empty if rotated keys are among the rows.
    void go_back(uint32_t seq, const h2o_sequence_state & state, const h2o_row_copies * rows,
            const std::vector<ggml_backend_t> & backends);

    // a sequence's rows from this one on are free: their memory is returned until they are written
    void release(uint32_t seq, uint32_t first) const;

    // a fork: the rows of `from`, whose state this is
    void copy(uint32_t from, uint32_t to, const h2o_sequence_state & state);

    // float32 [n_head_kv, n_positions, n_embd_head], NaN where evicted. Throws std::runtime_error if reading fails.
    void read(uint32_t seq, const h2o_sequence_state & state, const h2o_kv_layer & layer, h2o_kv_part part,
            uint32_t n_positions, float * dst) const;

    // bytes of a row of all layers with memory sets, or of all dense layers
    uint64_t row_bytes(bool dense) const;

    // bytes of all rows of a sequence that are ever used
    uint64_t n_bytes() const;

    // NULL: there is none
    h2o_cold_store * cold(uint32_t seq) const { return cold_stores[seq].get(); }

    const h2o_layout    layout;
    const h2o_positions positions;

private:
    // compact layout: where a part of the n positions in the memory set of a chunk is as it was written
    uint32_t written_row(h2o_kv_part part, uint32_t n, uint32_t chunk_start) const {
        return part == H2O_K && positions.is_moved(chunk_start) ? layout.first_written_row(n) : layout.first_row(n);
    }

    // the keys of the memory sets are rotated to where the open chunk wants them
    void move_keys(uint32_t seq, const h2o_sequence_state & state, const std::vector<ggml_backend_t> & backends);

    // of n keys at row `from`, to be written to row `to`
    h2o_key_rotation rotation(const h2o_kv_layer & layer, const h2o_rope & rope, uint32_t seq, uint32_t from,
            uint32_t to, std::vector<int32_t> shifts, const h2o_key_index * index) const;

    uint32_t n_rows_of(const h2o_kv_layer & layer) const { return layer.is_dense() ? layout.kv_size : layout.n_rows(); }

    const h2o_config & config;

    std::vector<h2o_kv_layer>  all_layers;
    std::vector<part_of_layer> all_parts;
    std::vector<part_of_layer> memory_parts; // of layers with memory sets

    std::vector<std::unique_ptr<h2o_cold_store>> cold_stores; // by sequence

    std::map<int32_t, h2o_rope> ropes; // by layer

    h2o_row_mover mover;
};
