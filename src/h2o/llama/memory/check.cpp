// Whether the parts of the memory agree about what each sequence is.

#include "h2o/llama/memory/memory.h"
#include "h2o/store/cold/store.h"

#include "llama-impl.h"

#include <algorithm>
#include <stdexcept>

void h2o_memory::check() const {
    for (const auto & kv : seqs) {
        const auto &   state    = kv->state();
        const uint32_t n        = state.n_tokens;
        const uint32_t n_closed = state.n_memory_sets()*config.chunk_size;

        const auto is = [&](bool ok, const char * what) {
            if (!ok) {
                throw std::runtime_error(format("[h2o] sequence %d of %u tokens: %s", kv->id, n, what));
            }
        };
        const auto is_memory = [&](const std::vector<int32_t> & memory, uint32_t n_head_kv, uint32_t end) {
            is(memory.size() == (size_t) n_head_kv*config.n_memory(end) &&
                std::all_of(memory.begin(), memory.end(), [&](int32_t pos) { return pos >= 0 && pos < (int32_t) end; }),
                "a memory set");
        };
        is(n_closed <= n && n <= n_closed + config.chunk_size, "not one chunk is open");
        is(state.n_scored <= n && state.generated_start <= n, "scored or generated tokens are after its end");
        for (const auto & layer : state.layers) {
            is(layer.n_built == state.n_memory_sets(), "layers have another number of memory sets");
            is_memory(layer.memory, layer.n_head_kv, n_closed);
            is(layer.end() <= std::max(n, layer.first), "scores after its end");
            is(layer.attention.size() <= (size_t) n*layer.n_head_kv, "attention after its end");
            is(layer.extra_keys.empty() || (n > 0 && layer.extra_keys.rbegin()->first <= config.tile_of(n - 1)),
                "extra keys after its end");
            for (const auto & [pos, record] : state.checkpoints) {
                const auto & r = record.layers[layer.index];
                is(pos > 0 && pos <= n && record.n_tokens == pos && r.n_built == pos/config.chunk_size, "a checkpoint");
                is_memory(r.memory, layer.n_head_kv, r.n_built*config.chunk_size);
                is(!record.rows || (r.n_built < layer.n_built && record.rows->end >= pos), "rows of a checkpoint");
            }
        }
        is(can_rewind(*kv, n), "it cannot be cut where it ends");

        auto parts = caches.side.all(); // which have all that later tokens need
        if (auto * cache = caches.dense_cache ? caches.dense_cache.get() : caches.cache.get();
                caches.dense_cache || !store.layout.is_compact) {
            is(n == 0 || cache->seq_pos_min(kv->id) == 0, "its first cell is missing");
            parts.push_back(cache);
        }
        is(caches.cache->seq_pos_max(kv->id) < (llama_pos) n, "cells after its end");
        for (const auto * part : parts) {
            is(part->seq_pos_max(kv->id) + 1 == (llama_pos) n, "cells, sliding windows or recurrent states end elsewhere");
        }
        const auto * cold = store.cold(kv->id);
        is(!cold || cold->n_chunks() == state.n_memory_sets(), "the cold store has other chunks");
    }
}
