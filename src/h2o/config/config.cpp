#include "h2o/config/config.h"

#include "h2o/config/options.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

static void check(bool ok, const std::string & what) {
    if (!ok) {
        throw std::invalid_argument("[h2o] " + what);
    }
}

// Checks of two parameters or more. They name the parameters as Python does.
h2o_config::h2o_config(const llama_h2o_params & params) : llama_h2o_params(params) {
    h2o_check_options(params);

    if (!ranks_blocks()) {
        block_tokens = 1;
        ema_alpha    = 1.0;
    }
    ema_alpha = (float) ema_alpha; // as scores are

    const auto text = [](uint64_t x) { return std::to_string(x); };

    check(memory_size() >= 1 && memory_size() <= INT32_MAX,
            "local_window + heavy_budget + sink_tokens must be from 1 to " + text(INT32_MAX) + ", got " +
                    text(memory_size()));
    check(local_window <= chunk_size, "local_window must be at most chunk_size (" + text(chunk_size) + "), got " +
            text(local_window));
    check(chunk_size%block_tokens == 0 && local_window%block_tokens == 0 && heavy_budget%block_tokens == 0 &&
            sink_tokens%block_tokens == 0,
            "scorer block_ema keeps blocks: chunk_size, local_window, heavy_budget and sink_tokens must be multiples "
                    "of block_tokens (" +
            text(block_tokens) + "), got " + text(chunk_size) + ", " + text(local_window) + ", " + text(heavy_budget) +
                    " and " + text(sink_tokens));
    check(!ranks_blocks() || ema_alpha < 1.0, "ema_alpha must be at least 0 and below 1");
    check(lookup_budget == 0 || chunk_size <= tile || chunk_size%tile == 0,
            "lookups are of whole tiles: chunk_size must be a multiple of tile (" + text(tile) + "), or less, got " +
                    text(chunk_size));
    check(!has_dense_layers() || schedule == LLAMA_H2O_SCHEDULE_SINGLE_PASS, "dense_layers need schedule single_pass");

    const std::string gone = ": what is evicted cannot be attended to";
    check(!evict || schedule == LLAMA_H2O_SCHEDULE_SINGLE_PASS,
            "evict needs schedule single_pass, got two_phase" + gone);
    check(!evict || decode == LLAMA_H2O_DECODE_MEMORY, "evict needs decode memory, got full" + gone);
    check(!evict || lookup_budget == 0 || has_cold_store(),
            "evict needs lookup_budget 0 or a cold_store, got " + text(lookup_budget) + gone);
    check(evict || !has_cold_store(), "cold_store is for what is evicted: it needs evict");
    check(evict || positions == LLAMA_H2O_POSITIONS_TEXT, "positions cache is for what eviction keeps: it needs evict");
    check(!has_cold_store() || positions == LLAMA_H2O_POSITIONS_TEXT,
            "positions cache needs no cold_store: what comes back from there is at its position in the text. Use "
                    "positions text");
    check(!lossless.on || has_cold_store(),
            "lossless is about what is in a cold store: it needs cold_store");
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

uint32_t h2o_config::n_extra(uint32_t chunk_start) const {
    const double n = std::floor(lookup_budget*std::pow(chunk_start/(8.0*chunk_size), 0.75) + 0.5);

    return std::clamp(n, 1.0, (double) INT32_MAX);
}

std::string h2o_config::state_key() const {
    const llama_h2o_params def = llama_h2o_default_params();

    // what may differ, or has no effect
    llama_h2o_params params = *this;
    params.decode   = def.decode;
    params.lossless = def.lossless;
    params.products = def.products;
    strcpy(params.cold_store, has_cold_store() ? "somewhere" : "");
    params.tile     = lookup_budget == 0 ? def.tile : tile;

    std::string res(llama_h2o_params_desc(&params, nullptr, 0) + 1, 0);
    llama_h2o_params_desc(&params, res.data(), res.size());
    res.pop_back();
    return res;
}
