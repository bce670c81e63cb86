#pragma once

#include "h2o/sequence/state.h"
#include "h2o/store/cold/store.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

struct ggml_h2o_attn_source_layout;

// Evicted rows that the queries of a step look up, brought back from the cold store layer by layer: what ggml_h2o_attn calls far.
class h2o_far_rows {
public:
    explicit h2o_far_rows(const h2o_cold_store & store) : store(store), kept_bytes(store.row_sizes.size()) {}

    // those of the next step, ascending
    void set(std::vector<int32_t> positions);

    // their number, a position among them
    int32_t row_of(int32_t pos) const;

    // Writes a layer's rows to dst, and which of them are in its memory sets. Errors are reported by check(). The ith of nth
    // threads does its share.
    void fetch(const h2o_layer & layer, const ggml_h2o_attn_source_layout & at, size_t n_far, uint8_t * dst, int ith, int nth);

    // Writes the rows of chosen positions, and of position 0, likewise. dst has room for n positions, each at its own place; the others
    // are not written.
    void fetch_chosen(size_t layer, const int32_t * chosen, size_t n_chosen, const ggml_h2o_attn_source_layout & at, size_t n, uint8_t * dst, int ith, int nth);

    // Writes the rows of n positions from the first on, likewise.
    void fetch_range(size_t layer, h2o_cold_store::part_t part, uint32_t first, size_t n, uint8_t * dst, int ith, int nth);

    // throws std::runtime_error if a row could not be read since the last time
    void check();

private:
    // Rows that were looked up are kept for the next steps: generated tokens look up nearly the same as the tokens before
    // them. The least recently used positions make room. They are the same in all layers.
    struct kept_position {
        size_t   slot; // row of kept_bytes
        uint64_t used; // n_used then
    };

    static constexpr size_t MAX_KEPT = 512; // a step with more is a prompt's: it neither uses nor changes what is kept

    void keep_positions();
    void forget_kept();

    // what it throws is kept for check()
    template <typename F>
    void keep_failure(const F & f);

    // Writes the rows of missing[begin, end) or present[begin, end) to their places in dst.
    void read_missing(size_t layer, h2o_cold_store::part_t part, size_t begin, size_t end, uint8_t * dst);
    void copy_present(size_t layer, h2o_cold_store::part_t part, size_t begin, size_t end, uint8_t * dst);

    uint8_t * kept_row(size_t layer, h2o_cold_store::part_t part, size_t i);

    const h2o_cold_store & store;

    std::vector<int32_t> positions;

    size_t n_layers_begun = 0; // in the step

    std::unordered_map<int32_t, kept_position> kept; // by position

    uint64_t n_used = 0;

    std::vector<std::array<std::vector<uint8_t>, 2>> kept_bytes; // by layer: of K, of V

    std::vector<size_t> slots; // of the step's positions; empty if it keeps none

    // which of the step's positions are kept from the steps before, and which are read
    std::vector<size_t> present, missing;

    uint64_t version = 0; // of the store, when this was kept

    std::mutex  mutex;
    std::string failure;
};
