#include "h2o/llama/step-context.h"

#include "h2o/config/env.h"
#include "h2o/store/cold/store.h"

#include "llama-graph.h"
#include "llama-impl.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstdio>
#include <exception>

// one line for each step of the algorithm, on stderr
#define H2O_DEBUG(name, ...) \
    do { static const bool on = h2o_env(name); if (on) { fprintf(stderr, "[H2O] " __VA_ARGS__); } } while (0)

h2o_step_context::h2o_step_context(h2o_context & memory) : llama_kv_cache_context(memory.caches.cache.get()),
        memory(memory) {
    if (memory.caches.dense_cache) {
        dense = std::make_unique<llama_kv_cache_context>(memory.caches.dense_cache.get());
    }
}

h2o_step_context::h2o_step_context(
        h2o_context & memory,
        slot_info_vec_t sinfos,
        slot_info_vec_t dense_sinfos,
        std::vector<llama_ubatch> ubatches,
        std::vector<h2o_sequence_call> calls,
        std::vector<std::vector<h2o_call_step>> steps)
    : llama_kv_cache_context(memory.caches.cache.get(), std::move(sinfos), ubatches), memory(memory),
            calls(std::move(calls)), steps(std::move(steps)) {
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
        call.transaction->commit();
    }

    return false;
}

bool h2o_step_context::apply() {
    try {
        t_start_us = ggml_time_us();
        is_applied = false;

        std::vector<llama_seq_id> seq_ids;
        for (const auto & s : steps[i_step]) {
            seq_ids.push_back(s.kv->id);

            auto & call = calls[s.i_call];
            if (!call.transaction) {
                // said for this call only
                call.kv->next_call  = LLAMA_H2O_CALL_AUTO;
                call.kv->dense_tail = 0;

                call.transaction = std::make_unique<h2o_transaction>(*call.kv, call.steps, call.n_tokens);
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
            begin_step(s);
        }
        return is_applied = true;
    } catch (const std::exception & e) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, e.what());
        return false;
    }
}

static void log_step(const h2o_step & step, uint32_t S, bool has_memory) {
    switch (step.phase) {
        case h2o_step::SINGLE_PASS:
            H2O_DEBUG("H2O_DEBUG_PHASES", "single_pass chunk_idx=%u ubatch.n_tokens=%u pos=%u n_memory=%u\n",
                    step.pos/S, step.n_tokens, step.pos, step.n_memory);
            break;
        case h2o_step::TAIL:
            H2O_DEBUG("H2O_DEBUG_PHASES", "dense tail chunk_idx=%u ubatch.n_tokens=%u pos=%u\n", step.pos/S,
                    step.n_tokens, step.pos);
            break;
        case h2o_step::INTRA:
            H2O_DEBUG("H2O_DEBUG_PHASES", "phase=1 ubatch.n_tokens=%u pos=%u\n", step.n_tokens, step.pos);
            break;
        case h2o_step::INTER:
            H2O_DEBUG("H2O_DEBUG_PHASES", "phase=2 chunk_idx=%u ubatch.n_tokens=%u has_prev=%d mem_init=%d\n",
                    step.pos/S, step.n_tokens, step.pos/S > 0, has_memory);
            break;
        case h2o_step::DECODE:
            break;
    }
}

void h2o_step_context::begin_step(const h2o_call_step & s) {
    const auto & step = s.step;

    const int64_t t_select_us = ggml_time_us();
    if (const auto selection = s.kv->sequence.begin_step(step)) {
        memory.store.apply(s.kv->id, *selection, s.kv->state(), memory.backends);
        if (!memory.caches.side.empty()) {
            s.kv->sequence.set_side(memory.caches.side.save(s.kv->id), calls[s.i_call].transaction->start);
        }

        t_start_us = ggml_time_us();
        s.kv->stats.t_select_us += t_start_us - t_select_us;
        s.kv->stats.n_select    += selection->from.size();
    }

    if (memory.store.layout.is_compact && step.pos % memory.config.chunk_size == 0) { // rows of the chunk before
        memory.store.release(s.kv->id, memory.store.layout.row_of(step.pos) + step.n_tokens);
    }

    log_step(step, memory.config.chunk_size, s.kv->state().n_memory_sets() > 0);
}

bool h2o_step_context::finish(const llm_graph_result & res, ggml_backend_sched_t sched) {
    try {
        // they would be forgotten when the next chunk's come
        const auto & [kv, step, i_call] = steps[i_step].front();
        const auto & call        = calls[i_call];
        const bool keeps_choices = kv->sequence.keep_extra_keys || (call.has_logits &&
                step.pos >= memory.config.chunk_start(call.transaction->start + call.n_tokens - 1));
        for (const auto & input : res.inputs) {
            if (auto * graph = dynamic_cast<h2o_computed_graph *>(input.get())) {
                graph->read_results(sched, keeps_choices);
            }
        }
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
            ok = finish_step(s, (ggml_time_us() - t_start_us)/steps[i_step].size()) && ok;
        }
        return ok;
    } catch (const std::exception & e) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, e.what());
        return false;
    }
}

// by phase
static constexpr struct {
    uint64_t llama_h2o_stats::* n;
    int64_t  llama_h2o_stats::* t_us;
} COUNTERS[] = {
    { &llama_h2o_stats::n_single_pass, &llama_h2o_stats::t_single_pass_us },
    { &llama_h2o_stats::n_phase1,      &llama_h2o_stats::t_phase1_us },
    { &llama_h2o_stats::n_phase2,      &llama_h2o_stats::t_phase2_us },
    { &llama_h2o_stats::n_decode,      &llama_h2o_stats::t_decode_us },
    { &llama_h2o_stats::n_tail,        &llama_h2o_stats::t_tail_us },
};

// t_us: the sequence's share of the time
bool h2o_step_context::finish_step(const h2o_call_step & s, int64_t t_us) {
    const auto & step  = s.step;
    auto       & stats = s.kv->stats;

    stats.*COUNTERS[step.phase].n    += 1;
    stats.*COUNTERS[step.phase].t_us += t_us;
    if (step.phase == h2o_step::DECODE) {
        return true;
    }
    if (step.phase != h2o_step::INTER) {
        stats.n_tokens_prefill += step.n_tokens;
    }
    if (step.has_phase2) {
        H2O_DEBUG("H2O_DEBUG_CACHE", "cache ready: n_tokens=%u base_pos=%u layers=%zu\n", step.n_tokens, step.pos,
                s.kv->state().layers.size());
    }
    const uint32_t n_done = step.has_phase2 ? 0 : step.offset + step.n_tokens;

    return !s.kv->progress || s.kv->progress(step.phase, n_done, calls[s.i_call].n_tokens, s.kv->progress_data);
}

std::vector<h2o_call_step> h2o_step_context::get_steps(const llama_ubatch & ubatch) const {
    if (!steps.empty()) {
        return steps[i_step];
    }

    auto * first = memory.sequences().front().get();
    if (reserve_step.n_tokens > 0) {
        return { { first, reserve_step, 0 } };
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
            res.push_back({ first, { phase, end - n, n, 0, n_memory, false }, 0 });
        }
        return res;
    }

    // at the end of a chunk
    const uint32_t n_decode_memory = config.decode == LLAMA_H2O_DECODE_MEMORY ? n_memory : 0;
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const uint32_t end = std::min(chunk_start(1) + config.chunk_size, n_positions);
        res.push_back({ memory.sequence(i), { h2o_step::DECODE, end - 1, 1, 0, n_decode_memory, false }, 0 });
    }
    return res;
}
