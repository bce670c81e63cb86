#pragma once

#include "llama-kv-cache-h2o.h"

#include <functional>
#include <vector>

// Access from the host to the K and V of positions [p0, p1) as float32 [n_head_kv, p1 - p0, n_embd_head],
// whatever their type and layout in the cache. The caller has checked the layer and the range.

void h2o_kv_get_k(const llama_kv_cache_h2o & kv, int32_t il, uint32_t p0, uint32_t p1, float * dst);
void h2o_kv_get_v(const llama_kv_cache_h2o & kv, int32_t il, uint32_t p0, uint32_t p1, float * dst);

// The same K in the cache's order [p1 - p0, n_head_kv, n_embd_head], which is faster. finish(i, row) is called for every row.
void h2o_kv_get_k_rows(const llama_kv_cache_h2o & kv, int32_t il, uint32_t p0, uint32_t p1, std::vector<float> & dst,
        const std::function<void(uint32_t i, float * row)> & finish);

void h2o_kv_set_k(llama_kv_cache_h2o & kv, int32_t il, uint32_t p0, uint32_t p1, const float * src);
void h2o_kv_set_v(llama_kv_cache_h2o & kv, int32_t il, uint32_t p0, uint32_t p1, const float * src);

// K and V of the memory set [n_head_kv, M, n_embd_head], by the graph that inference uses; padding is zero.
// False if the computation failed.
bool h2o_kv_gather_k(const llama_kv_cache_h2o & kv, int32_t il, float * dst);
bool h2o_kv_gather_v(const llama_kv_cache_h2o & kv, int32_t il, float * dst);
