#pragma once

#include "h2o/store/kv-rows.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <cstdint>
#include <map>
#include <vector>

// K or V of a layer, whose rows move, see h2o_kv_rows::move
struct h2o_row_moves {
    h2o_kv_rows rows;

    uint32_t             first;
    std::vector<int32_t> from;
};

// Moves rows in place: by the host or, where it cannot reach them, on their device, which gets only row numbers.
class h2o_row_mover {
public:
    h2o_row_mover();

    // backends: one for each device, which moves rows before its next computation; rows that none can move go through
    // the host. Throws std::runtime_error if there is not enough memory or a device fails.
    void move(const std::vector<ggml_backend_t> & backends, const std::vector<h2o_row_moves> & moves);

private:
    const bool is_on_device; // wherever rows are, for tests

    std::map<ggml_backend_t, ggml_gallocr_ptr> allocators; // of what chosen rows are gathered into
};
