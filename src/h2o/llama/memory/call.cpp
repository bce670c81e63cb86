#include "h2o/llama/memory/call.h"

#include "h2o/config/env.h"

#include "llama-impl.h"

#include <cstdio>
#include <exception>

// one line for each step of the algorithm, on stderr
#define H2O_DEBUG(name, ...) \
    do { static const bool on = h2o_env(name); if (on) { fprintf(stderr, "[H2O] " __VA_ARGS__); } } while (0)

void h2o_call::begin() {
    const auto & memory     = kv.memory;
    const auto & config     = memory.config;
    const auto & first_step = steps.front();

    const bool is_mark = first_step.phase != h2o_step::DECODE && start % config.chunk_size != 0;
    open_start = kv.state().open_start();

    // a generated token that begins no chunk changes nothing, or has a checkpoint of the sequence
    if (first_step.phase != h2o_step::DECODE || steps.size() > 1 || first_step.pos % config.chunk_size == 0) {
        // rows move when a chunk is closed
        if (memory.store.layout.is_compact && config.chunk_start(start + n_tokens - 1) > open_start) {
            const bool is_kept = !memory.store.cold(kv.id) && (is_mark || kv.past().has_marks(open_start));
            rows = std::make_shared<h2o_row_copies>(memory.store.kept_rows(kv.id, open_start, start, /*with_moved =*/ true));
            rows->save(/*on_devices =*/ !is_kept);
        }
        // a dense tail changes the scores of any position
        checkpoint = kv.state().record(start, steps.back().phase == h2o_step::TAIL && !config.evict ? 0 : open_start);
    }
    std::shared_ptr<const std::vector<uint8_t>> side = is_mark ? kv.past().side_of(start) : nullptr;
    if (is_mark && !side && !memory.caches.side.empty()) {
        side = std::make_shared<const std::vector<uint8_t>>(memory.caches.side.save(kv.id));
    }
    windows = kv.memory.caches.side.keep(kv.id, steps.size() > 1);

    // nothing fails from here on; the next call says these two again
    if (is_mark) {
        kv.sequence.mark(std::move(side));
    }
    kv.next_call  = LLAMA_H2O_CALL_AUTO;
    kv.dense_tail = 0;
    kv.sequence.drop_unseen(start + n_tokens);
    is_begun = true;
}

h2o_call::~h2o_call() {
    if (!is_begun || is_committed) {
        return;
    }
    try {
        for (auto * backend : kv.memory.backends) {
            ggml_backend_synchronize(backend);
        }
        kv.memory.go_back(kv, checkpoint ? *checkpoint : kv.past().checkpoint_of(start), rows.get(),
                /*moves_keys =*/ false);
        kv.memory.caches.side.go_back(kv.id, start, windows.get());
        if (steps.back().keeps_attention) {
            kv.sequence.forget_attention();
        }
    } catch (const std::exception & e) { // a lost device, such as an RPC server: the sequence cannot be used
        LLAMA_LOG_ERROR("%s: what the call has changed cannot be undone, sequence %d is empty now: %s\n", __func__,
                kv.id, e.what());
        kv.memory.clear(kv);
    }
}

void h2o_call::begin_step(const h2o_step & step) {
    auto & memory = kv.memory;

    const int64_t t_start_us = t_step_us = ggml_time_us();
    if (const auto selection = kv.sequence.begin_step(step)) {
        memory.store.apply(kv.id, *selection, kv.state(), memory.backends);
        if (!memory.caches.side.empty()) {
            kv.sequence.set_side(memory.caches.side.save(kv.id), start);
        }

        t_step_us = ggml_time_us();
        kv.counts.selections.t_us += t_step_us - t_start_us;
        kv.counts.selections.n    += selection->from.size();
    }

    if (memory.store.layout.is_compact && step.pos % memory.config.chunk_size == 0) { // rows of the chunk before
        memory.store.release(kv.id, memory.store.layout.row_of(step.pos) + step.n_tokens);
    }

    static const char * const names[h2o_step::N_PHASES] = { "single_pass", "1", "2", "decode", "tail" };
    if (step.phase != h2o_step::DECODE) {
        const uint32_t chunk = step.pos/memory.config.chunk_size;
        H2O_DEBUG("H2O_DEBUG_PHASES", "phase=%s chunk_idx=%u ubatch.n_tokens=%u pos=%u n_memory=%u has_prev=%d mem_init=%d\n",
                names[step.phase], chunk, step.n_tokens, step.pos, step.n_memory, chunk > 0,
                kv.state().n_memory_sets() > 0);
    }
}

bool h2o_call::end_step(const h2o_step & step, uint32_t n_sequences) {
    auto & passes = kv.counts.passes[step.phase];

    passes.n    += 1;
    passes.t_us += (ggml_time_us() - t_step_us)/n_sequences;
    if (step.phase == h2o_step::DECODE) {
        return true;
    }
    if (step.phase != h2o_step::INTER) {
        kv.counts.n_tokens_prefill += step.n_tokens;
    }
    if (step.has_phase2) {
        H2O_DEBUG("H2O_DEBUG_CACHE", "cache ready: n_tokens=%u base_pos=%u layers=%zu\n", step.n_tokens, step.pos,
                kv.state().layers.size());
    }
    const uint32_t n_done = step.has_phase2 ? 0 : step.offset + step.n_tokens;

    return !kv.progress || kv.progress(step.phase, n_done, n_tokens, kv.progress_data);
}

void h2o_call::commit() {
    if (rows && !kv.memory.store.cold(kv.id)) {
        kv.sequence.set_rows(std::move(rows), open_start);
    }
    kv.sequence.add_tokens(n_tokens, /*generated =*/ steps.back().phase == h2o_step::DECODE);
    kv.memory.caches.fill_cells(kv.id, start + n_tokens, kv.state().n_tokens); // it has taken over unseen rows
    kv.memory.caches.side.drop_spare(kv.id);
    is_committed = true;
}
