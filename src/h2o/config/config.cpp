#include "h2o/config/config.h"

#include <cmath>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>

h2o_config::h2o_config(const llama_h2o_params & params, uint32_t chunk_size)
    : chunk_size(chunk_size), local_window(params.local_window), heavy_budget(params.heavy_budget), sink_tokens(params.sink_tokens),
      scorer(&h2o_find_scorer(params.scorer)), lookup_budget(params.lookup_budget), tile(params.tile), retrieval(params.retrieval),
      block_tokens(scorer->ranks_blocks() ? params.block_tokens : 1), ema_alpha(scorer->forgets() ? params.ema_alpha : 1.0f),
      shared_heads(params.shared_heads), keep_ratio(params.keep_ratio), schedule(params.schedule), decode(params.decode), evict(params.evict),
      cold_store(params.cold_store, strnlen(params.cold_store, sizeof(params.cold_store))), lossless(params.lossless) {
    std::copy(std::begin(params.dense_layers), std::end(params.dense_layers), dense_layers.begin());

    if (chunk_size < 1) {
        throw std::invalid_argument("[h2o] the chunk size (n_ubatch) must be at least 1");
    }
    if (local_window > chunk_size) {
        throw std::invalid_argument("[h2o] local window " + std::to_string(local_window) + " must not exceed the chunk size (n_ubatch) " + std::to_string(chunk_size));
    }
    if (memory_size() < 1 || memory_size() > INT32_MAX) {
        throw std::invalid_argument("[h2o] local window + heavy budget + sink tokens must be in [1, 2^31), got " + std::to_string(memory_size()));
    }
    if (lookup_budget > INT32_MAX || tile > INT32_MAX || (lookup_budget > 0 && tile < 1)) {
        throw std::invalid_argument("[h2o] the lookup budget and the tile must be less than 2^31, the tile at least 1");
    }
    if (block_tokens < 1 || chunk_size%block_tokens != 0 || local_window%block_tokens != 0 || heavy_budget%block_tokens != 0 || sink_tokens%block_tokens != 0) {
        throw std::invalid_argument("[h2o] the scorer keeps blocks: chunk size (n_ubatch), local window, heavy budget and sink tokens must be multiples of block_tokens, " +
                std::to_string(params.block_tokens));
    }
    if (scorer->forgets() && !(ema_alpha >= 0.0f && ema_alpha < 1.0f)) {
        throw std::invalid_argument("[h2o] ema_alpha must be in [0, 1)");
    }
    if (!(keep_ratio >= 0.0 && keep_ratio <= 1.0)) {
        throw std::invalid_argument("[h2o] keep_ratio must be in [0, 1]");
    }
    if (schedule == LLAMA_H2O_SCHEDULE_TWO_PHASE && has_dense_layers()) {
        throw std::invalid_argument("[h2o] dense layers need the schedule single_pass");
    }
    if (schedule != LLAMA_H2O_SCHEDULE_SINGLE_PASS && schedule != LLAMA_H2O_SCHEDULE_TWO_PHASE) {
        throw std::invalid_argument("[h2o] the schedule must be single_pass or two_phase");
    }
    if (retrieval != LLAMA_H2O_RETRIEVAL_NGRAMS && retrieval != LLAMA_H2O_RETRIEVAL_INDEX) {
        throw std::invalid_argument("[h2o] the retrieval must be ngrams or index");
    }
    if (decode != LLAMA_H2O_DECODE_FULL && decode != LLAMA_H2O_DECODE_MEMORY) {
        throw std::invalid_argument("[h2o] decode must be full or memory");
    }
    if (evict && (schedule != LLAMA_H2O_SCHEDULE_SINGLE_PASS || decode != LLAMA_H2O_DECODE_MEMORY || has_key_index())) {
        throw std::invalid_argument("[h2o] to evict needs the schedule single_pass, decode memory and retrieval ngrams: what is evicted cannot be attended to");
    }
    if (evict && lookup_budget > 0 && !has_cold_store()) {
        throw std::invalid_argument("[h2o] to evict needs lookup 0 or a cold store: what is evicted cannot be looked up");
    }
    if (has_cold_store() && !evict) {
        throw std::invalid_argument("[h2o] a cold store is for what is evicted: switch eviction on too");
    }
    if (lossless.mode != LLAMA_H2O_LOSSLESS_OFF && !has_cold_store()) {
        throw std::invalid_argument("[h2o] lossless is about what is in a cold store: name one, or switch it off");
    }
    if (lossless.n_threads < 1 || lossless.n_threads > 512 || lossless.max_queue < 1) {
        throw std::invalid_argument("[h2o] lossless needs 1 to 512 threads and a queue for at least 1 chunk");
    }
}

uint32_t h2o_config::n_memory(uint32_t chunk_end) const {
    uint64_t n = memory_size();
    if (keep_ratio > 0.0) {
        // a product of decimal fractions that is a whole number but for its rounding is that number
        const uint64_t n_blocks = std::ceil(keep_ratio*chunk_end/block_tokens*(1.0 - 1e-12));
        n = std::min(n, std::max(n_blocks*block_tokens, (uint64_t) sink_tokens + local_window));
    }
    return std::min<uint64_t>(n, chunk_end);
}
