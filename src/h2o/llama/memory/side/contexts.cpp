#include "h2o/llama/memory/side/contexts.h"

llama_memory_context_ptr h2o_compose(std::unique_ptr<h2o_step_context> attention,
        const std::vector<llama_ubatch> & ubatches) {
    h2o_step_context * steps = attention.get();

    const auto & window    = steps->memory.caches.side.window;
    const auto & recurrent = steps->memory.caches.side.recurrent;

    llama_memory_context_ptr res = std::move(attention);
    if (window) {
        llama_memory_context_ptr rows;
        if (ubatches.empty()) {
            rows = std::make_unique<llama_kv_cache_context>(window.get());
        } else if (auto slots = window->prepare(ubatches); !slots.empty()) {
            rows = std::make_unique<h2o_side_context<llama_kv_cache_context>>(steps, window.get(), std::move(slots),
                    ubatches);
        } else {
            return nullptr;
        }
        res = std::make_unique<h2o_composed_context<llama_kv_cache_iswa_context>>(steps, ubatches, std::move(res),
                std::move(rows));
    }
    if (recurrent) {
        if (!ubatches.empty() && !recurrent->prepare(ubatches)) {
            return nullptr;
        }
        auto state = ubatches.empty() ? std::make_unique<llama_memory_recurrent_context>(recurrent.get()) :
            std::make_unique<h2o_side_context<llama_memory_recurrent_context>>(steps, recurrent.get(), ubatches);

        if (window) {
            res = std::make_unique<h2o_composed_context<llama_memory_hybrid_iswa_context>>(steps, ubatches,
                    std::move(res), std::move(state));
        } else {
            res = std::make_unique<h2o_composed_context<llama_memory_hybrid_context>>(steps, ubatches, std::move(res),
                    std::move(state));
        }
    }
    return res;
}
