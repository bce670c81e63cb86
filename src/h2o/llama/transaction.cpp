#include "h2o/llama/transaction.h"

#include "llama-impl.h"

#include <exception>

h2o_transaction::h2o_transaction(llama_h2o_kv & kv, const std::vector<h2o_step> & steps, uint32_t n_tokens)
    : start(kv.state().n_tokens), kv(kv), n_tokens(n_tokens), is_generated(steps.back().phase == h2o_step::DECODE) {
    const auto & context = kv.context;
    const auto & config  = context.config;
    const auto & first   = steps.front();

    // a generated token that begins no chunk changes nothing, or has a checkpoint of the sequence
    if (first.phase != h2o_step::DECODE || steps.size() > 1 || first.pos % config.chunk_size == 0) {
        const uint32_t open_start = kv.state().open_start();

        // rows move when a chunk is closed
        if (context.store.layout.is_compact && config.chunk_start(start + n_tokens - 1) > open_start) {
            rows = context.store.kept_rows(kv.id, open_start, start, /*with_moved =*/ true);
            rows->save();
        }
        if (first.phase != h2o_step::DECODE) {
            kv.sequence.mark();
        }
        // a dense tail changes the scores of any position
        checkpoint = kv.state().record(start, steps.back().phase == h2o_step::TAIL && !config.evict ? 0 : open_start);
    }
    windows = kv.context.caches.side.keep(kv.id, steps.size() > 1);
}

h2o_transaction::~h2o_transaction() {
    if (is_committed) {
        return;
    }
    try {
        for (auto * backend : kv.context.backends) {
            ggml_backend_synchronize(backend);
        }
        kv.context.go_back(kv, checkpoint ? *checkpoint : kv.state().checkpoint_of(start), rows,
                /*moves_keys =*/ false);
        kv.context.caches.side.go_back(kv.id, start, windows.get());
    } catch (const std::exception & e) { // a lost device, such as an RPC server: the sequence cannot be used
        LLAMA_LOG_ERROR("%s: what the call has changed cannot be undone, sequence %d is empty now: %s\n", __func__,
                kv.id, e.what());
        kv.context.clear(kv);
    }
}

void h2o_transaction::commit() {
    kv.sequence.add_tokens(n_tokens, is_generated);
    kv.context.caches.side.drop_spare(kv.id);
    is_committed = true;
}
