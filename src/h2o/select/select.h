#pragma once

#include "h2o/config/config.h"

#include <cstdint>
#include <vector>

// Sinks and local window, ascending positions, of the chunk (may be partial) that ends at chunk_end.
std::vector<int32_t> h2o_select_near(const h2o_config & config, uint32_t chunk_end);

// The memory set, ascending positions, of one KV head and the chunk (may be partial) that ends at chunk_end.
//   pos:   the memory set before and the chunk, strictly ascending
//   score: of each of them
std::vector<int32_t> h2o_select_memory(const h2o_config & config, uint32_t chunk_end,
        const std::vector<int32_t> & pos, const std::vector<float> & score);
