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

// Evicted rows that a step's queries look up, fetched from the cold store by layer: a source of ggml_h2o_attn.
class h2o_offloaded_rows {
public:
    explicit h2o_offloaded_rows(const h2o_cold_store & store) : store(store), kept_bytes(store.row_sizes.size()) {}

    // the positions of the next step, ascending
    void set(std::vector<int32_t> positions);

    // the index of one of them
    int32_t row_of(int32_t pos) const;

    // Writes a layer's rows to dst, and which are in memory sets, as the ith of nth threads. check() reports errors.
    void fetch(const h2o_layer & layer, const ggml_h2o_attn_source_layout & source, size_t n_offloaded, uint8_t * dst,
            int ith, int nth);

    // The same of chosen positions, and of position 0: row i holds position i, of n. Other rows are not written.
    void fetch_chosen(size_t layer, const int32_t * chosen, size_t n_chosen, const ggml_h2o_attn_source_layout & source,
            size_t n, uint8_t * dst, int ith, int nth);

    // Writes the rows of n positions from the first on, likewise.
    void fetch_range(size_t layer, h2o_kv_part part, uint32_t first, size_t n, uint8_t * dst, int ith, int nth);

    // throws std::runtime_error if a row could not be read since the last time
    void check();

private:
    // Rows that were looked up are kept for the next steps: generated tokens look up nearly the same as the tokens
    // before them. The least recently used positions make room. They are the same in all layers.
    struct kept_position {
        size_t   slot; // row of kept_bytes
        uint64_t used; // n_used then
    };

    static constexpr size_t MAX_KEPT = 512; // a step with more is a prompt's: it neither uses nor changes the kept rows

    void keep_positions();
    void forget_kept();

    // f's exception is kept for check()
    template <typename F>
    void keep_failure(const F & f);

    // Writes the rows of missing[begin, end) or present[begin, end) to their places in dst.
    void read_missing(size_t layer, h2o_kv_part part, size_t begin, size_t end, uint8_t * dst);
    void copy_present(size_t layer, h2o_kv_part part, size_t begin, size_t end, uint8_t * dst);

    uint8_t * kept_row(size_t layer, h2o_kv_part part, size_t i);

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
