#include "h2o/llama/memory/step-context.h"

#include "h2o/store/cold/store.h"

#include "llama-impl.h"

#include "ggml-backend.h"

#include <algorithm>
#include <exception>

h2o_step_context::h2o_step_context(h2o_memory & memory)
    : llama_kv_cache_context(memory.caches.cache.get()), h2o_batch_context(this), memory(memory) {
    if (memory.caches.dense_cache) {
        dense = std::make_unique<llama_kv_cache_context>(memory.caches.dense_cache.get());
    }
}

h2o_step_context::h2o_step_context(
        h2o_memory & memory,
        slot_info_vec_t sinfos,
        slot_info_vec_t dense_sinfos,
        std::vector<llama_ubatch> ubatches,
        h2o_calls calls,
        std::vector<std::vector<h2o_call_step>> steps)
    : llama_kv_cache_context(memory.caches.cache.get(), std::move(sinfos), ubatches), h2o_batch_context(this),
      memory(memory), calls(std::move(calls)), steps(std::move(steps)) {
    if (memory.caches.dense_cache) {
        dense = std::make_unique<llama_kv_cache_context>(memory.caches.dense_cache.get(), std::move(dense_sinfos),
                std::move(ubatches));
    }
}

bool h2o_step_context::next() {
    i_step++;
    if (dense) {
        dense->next();
    }

    if (llama_kv_cache_context::next()) {
        return true;
    }

    for (auto & call : calls) {
        call->commit();
    }

    return false;
}

bool h2o_step_context::apply() {
    try {
        is_applied = false;

        std::vector<llama_seq_id> seq_ids;
        for (const auto & s : steps[i_step]) {
            seq_ids.push_back(s.kv->id);
            if (!s.call->has_begun()) {
                s.call->begin();
            }
        }

        if (seq_ids.size() > 1) {
            memory.caches.side.make_room(seq_ids);
        }

        // in phase 2 the cells are already there
        if (steps[i_step].front().step.stores_kv() &&
                !(llama_kv_cache_context::apply() && (!dense || dense->apply()))) {
            return false;
        }

        for (const auto & s : steps[i_step]) {
            s.call->begin_step(s.step);
        }
        memory.current = this;
        return is_applied = true;
    } catch (const std::exception & e) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, e.what());
        return false;
    }
}

bool h2o_step_context::finish(const llm_graph_result & /*res*/, ggml_backend_sched_t sched) {
    try {
        // a chunk's extra keys would be forgotten when the next chunk's come
        const auto & [kv, step, call] = steps[i_step].front();
        const bool keeps_last = step.phase != h2o_step::DECODE && call->has_logits &&
            step.pos >= memory.config.chunk_start(call->start + call->n_tokens - 1);
        graph->read_results(sched, keeps_last);
        // devices compute while the host prepares the next step, unless that reads or moves their rows
        if (i_step + 1 == steps.size() || memory.store.layout.is_compact || !memory.caches.side.empty()) {
            ggml_backend_sched_synchronize(sched);
        }
        for (const auto & s : steps[i_step]) {
            if (auto * cold = memory.store.cold(s.kv->id)) {
                cold->check();
            }
        }

        bool ok = true;
        for (const auto & s : steps[i_step]) {
            ok = s.call->end_step(s.step, steps[i_step].size()) && ok;
        }
        return ok;
    } catch (const std::exception & e) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, e.what());
        return false;
    }
}

std::vector<h2o_call_step> h2o_step_context::get_steps(const llama_ubatch & ubatch) const {
    if (!steps.empty()) {
        return steps[i_step];
    }

    auto * first = memory.sequences().front().get();
    if (reserve_step.n_tokens > 0) {
        return { { first, reserve_step, nullptr } };
    }

    const auto &   config      = memory.config;
    const uint32_t n_positions = memory.store.layout.n_positions();
    const uint32_t n_memory    = config.n_memory(n_positions);

    // an index of keys grows with the text: the last chunk that n tokens fit into
    const auto chunk_start = [&](uint32_t n) { return memory.index && n <= n_positions ?
            config.chunk_start(n_positions - n) : 0; };

    std::vector<h2o_call_step> res;

    if (ubatch.n_tokens > ubatch.n_seqs) {
        const auto phase = config.schedule == LLAMA_H2O_SCHEDULE_SINGLE_PASS ? h2o_step::SINGLE_PASS : h2o_step::INTER;

        // at the end of a chunk; llama_context makes n_tokens a multiple of n_seqs, which may exceed a chunk
        for (uint32_t i = 0; i < ubatch.n_tokens; i += config.chunk_size) {
            const uint32_t n     = std::min(config.chunk_size, ubatch.n_tokens - i);
            const uint32_t start = chunk_start(n);
            const uint32_t end   = std::max(start + n, std::min(start + config.chunk_size, n_positions));
            res.push_back({ first, { phase, end - n, n, 0, n_memory, false }, nullptr });
        }
        return res;
    }

    // at the end of a chunk
    const uint32_t n_decode_memory = config.decode == LLAMA_H2O_DECODE_MEMORY ? n_memory : 0;
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const uint32_t end = std::min(chunk_start(1) + config.chunk_size, n_positions);
        res.push_back({ memory.sequence(i), { h2o_step::DECODE, end - 1, 1, 0, n_decode_memory, false }, nullptr });
    }
    return res;
}
