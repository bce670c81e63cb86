#pragma once

#include <cstdint>

// Which row of a layer's cache holds which position. Attention, scores and memory sets know rows, the user positions.
class h2o_layout {
public:
    virtual ~h2o_layout() = default;

    // rows of every KV head
    virtual uint32_t n_rows() const = 0;

    // the row of a position of the open chunk, the same for every layer and KV head
    virtual uint32_t row_of(uint32_t pos) const = 0;

    // the position that a row holds, for a KV head of the i-th layer
    virtual uint32_t position_of(uint32_t i_layer, uint32_t head, uint32_t row) const = 0;
};

// Every position is kept, in the row of its number.
class h2o_layout_full : public h2o_layout {
public:
    explicit h2o_layout_full(uint32_t n_rows) : n(n_rows) {}

    uint32_t n_rows() const override { return n; }

    uint32_t row_of(uint32_t pos) const override { return pos; }

    uint32_t position_of(uint32_t, uint32_t, uint32_t row) const override { return row; }

private:
    const uint32_t n;
};
