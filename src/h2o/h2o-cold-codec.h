#pragma once

#include "h2o-block-cache.h"
#include "h2o-cold-chunk.h"

#include "h2o-codec-pool.h"
#include "h2o-codec.h"
#include "llama-h2o.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

// The lossless codec of a cold store: threads that encode what is stored, beside the computation, and decode ahead what will be read.
// One for all sequences of a context.
class h2o_cold_codec {
public:
    struct layer {
        int32_t il;
        std::array<h2o_codec_type, 2> types; // of K, of V
    };

    // The last block that was read, for reading on in it.
    using held = std::pair<h2o_block_cache::key, h2o_block_cache::bytes>;

    // How many layers of a step have begun to be read; UINT32_MAX: the step is over.
    using progress = std::shared_ptr<std::atomic<uint32_t>>;

    // blocks of rows of a chunk, in each layer's K and V
    struct blocks {
        std::shared_ptr<const h2o_cold_chunk> chunk;
        std::vector<uint32_t> numbers;
    };

    h2o_cold_codec(const llama_h2o_lossless_params & params, std::shared_ptr<h2o_cold_place> place, std::vector<layer> layers);

    // Takes the chunk to be encoded in the background. Not if too many wait already, which counts unless it is tried again.
    void submit(const std::shared_ptr<h2o_cold_chunk> & chunk);

    // Rows [first, first + n) of a part that is in blocks. Throws std::runtime_error, which says where, if they are damaged.
    void read(const h2o_cold_part & part, const h2o_cold_rows & rows, uint32_t first, uint32_t n, uint8_t * dst, held & last);

    // Decodes what a step will read in the layers that it has not come to, as far as the cache has room.
    void decode_ahead(std::vector<blocks> blocks, progress p);

    llama_h2o_lossless_stats stats() const;

    uint32_t block_rows() const { return params.block_tokens; }

    // Of what is cached three quarters are single rows, of each sequence: few of a block are looked up.
    uint64_t row_cache_bytes() const { return params.mode == LLAMA_H2O_LOSSLESS_STORE ? params.cache_bytes - params.cache_bytes/4 : 0; }

private:
    // Made once for a chunk: what is stored lies between what comes and goes, whose room would stay free.
    struct buffers {
        std::vector<uint8_t> rows;
        std::vector<uint8_t> frames;
        std::vector<uint8_t> copy;
    };

    void encode(h2o_cold_part & part, buffers & b);

    h2o_block_cache::bytes load(const h2o_cold_part & part, const h2o_cold_rows & rows, uint32_t block);

    // one block to dst
    void decode(const h2o_cold_part & part, const h2o_cold_rows & rows, uint32_t block, uint8_t * dst);

    uint32_t n_rows_of(const h2o_cold_part & part, uint32_t block) const;

    const llama_h2o_lossless_params params;

    const std::shared_ptr<h2o_cold_place> place;

    const std::vector<layer> layers;

    h2o_block_cache cache;

    mutable std::mutex       mutex; // of the counts
    llama_h2o_lossless_stats counts = {};
    h2o_codec_times          encode_times;
    h2o_codec_times          decode_times;

    h2o_codec_pool pool; // its threads use all of the above
};
