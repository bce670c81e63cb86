#pragma once

#include "h2o/store/cold-chunk.h"

#include "h2o/store/codec/pool.h"
#include "llama-h2o.h"

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

// The lossless codec of a cold store: threads encode what is stored, beside the computation; who reads rows decodes them. One for all
// sequences of a context.
class h2o_cold_codec {
public:
    struct layer {
        int32_t il;
        std::array<h2o_codec_type, 2> types; // of K, of V
    };

    h2o_cold_codec(const llama_h2o_lossless_params & params, std::shared_ptr<h2o_cold_place> place, std::vector<layer> layers);

    // Takes the chunk to be encoded in the background. Not if too many wait already, which counts unless it is tried again.
    void submit(const std::shared_ptr<h2o_cold_chunk> & chunk);

    // Rows [first, first + n) of a part that is encoded. Throws std::runtime_error, which says where, if they are damaged.
    void read(const h2o_cold_part & part, const h2o_cold_rows & rows, uint32_t first, uint32_t n, uint8_t * dst) const;

    // how long a reader needed for what it wanted of a layer's K or V
    void count_read(float us);

    // Of the positions that a generated token looks up: whose rows were there from the tokens before it, and whose were not.
    void count_kept(uint64_t n_hits, uint64_t n_misses);

    llama_h2o_lossless_stats stats() const;

    const llama_h2o_lossless_params params;

private:
    using code = std::shared_ptr<const h2o_codec_row_code>;

    // Made once for a chunk: what is stored lies between what comes and goes, whose room would stay free.
    struct buffers {
        std::vector<uint8_t> rows;
        std::vector<uint8_t> encoded;
        std::vector<uint8_t> other;
    };

    void encode(h2o_cold_part & part, buffers & b);

    // whether b.encoded gives b.rows
    bool comes_back(const h2o_cold_rows & stored, buffers & b);

    // b.rows to b.encoded, by the latest code of the layer's K or V, or by a new one where the text has become another
    h2o_cold_rows encode_rows(const h2o_cold_part & part, buffers & b);

    const std::shared_ptr<h2o_cold_place> place;

    const std::vector<layer> layers;

    mutable std::mutex       mutex; // of all that follows
    llama_h2o_lossless_stats counts = {};
    h2o_codec_times          encode_times;
    h2o_codec_times          decode_times;

    std::vector<std::array<code, 2>> codes; // the latest of each layer's K and V

    h2o_codec_pool pool; // its threads use all of the above
};
