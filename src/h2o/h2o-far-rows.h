#pragma once

#include "h2o-cold-store.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

struct ggml_h2o_far_parts;

// Evicted rows that the queries of a step look up, brought back from the cold store layer by layer: what ggml_h2o_attn calls far.
class h2o_far_rows {
public:
    ~h2o_far_rows() { end_step(); }

    explicit h2o_far_rows(const h2o_cold_store & store) : store(store), recent(store.row_sizes.size()), coming(store.row_sizes.size()) {}

    // those of the next step, ascending
    void set(std::vector<int32_t> positions);

    // their number, a position among them
    int32_t row_of(int32_t pos) const;

    // Writes a layer's rows to dst; what fails is told by check(). The ith of nth threads has its part.
    //   memory: I32 [n_head_kv, M], the layer's memory set, ascending, -1 padded at the front
    void fetch(size_t layer, const std::vector<int32_t> & memory, uint32_t n_head_kv, const ggml_h2o_far_parts & at, size_t n_far, uint8_t * dst, int ith, int nth);

    // Writes the rows of n positions from the first on, likewise.
    void fetch_range(size_t layer, h2o_cold_store::part_t part, uint32_t first, size_t n, uint8_t * dst, int ith, int nth);

    // throws std::runtime_error if a row could not be read since the last time
    void check();

private:
    // of one layer
    struct rows {
        std::vector<int32_t> positions;
        std::vector<uint8_t> bytes[2]; // of K, of V
        bool                 is_filled = false;
    };

    // Generated tokens look up nearly what the one before them has: so much is kept for the next step.
    static constexpr size_t MAX_RECENT = 512;

    // nothing more is decoded ahead for it
    void end_step() { *progress = UINT32_MAX; }

    // what it throws is kept for check()
    template <typename F>
    void keep_failure(const F & f);

    void decode_ahead();

    void fetch_part(size_t layer, h2o_cold_store::part_t part, size_t begin, size_t end, uint8_t * dst);

    const h2o_cold_store & store;

    std::vector<int32_t> positions;

    h2o_cold_codec::progress progress = std::make_shared<std::atomic<uint32_t>>(0); // of the step

    std::vector<rows> recent; // by layer: of the last step
    std::vector<rows> coming; // of this one
    uint64_t          version = 0;

    std::mutex  mutex;
    std::string failure;
};
