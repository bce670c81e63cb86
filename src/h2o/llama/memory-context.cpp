#include "h2o/llama/memory-context.h"

#include "h2o/config/env.h"

#include "llama-batch.h"
#include "llama-impl.h"

#include <algorithm>
#include <cstdio>
#include <utility>

// a line of the debug log on stderr, which the environment variable switches on
#define H2O_DEBUG(name, ...) do { static const bool on = h2o_env(name); if (on) { fprintf(stderr, "[H2O] " __VA_ARGS__); } } while (0)

llama_memory_h2o_context::llama_memory_h2o_context(llama_memory_h2o * memory)
    : llama_kv_cache_context(memory->streams.front()->cache.get()), memory(memory) {
    if (const auto & cache = memory->streams.front()->dense_cache) {
        dense = std::make_unique<llama_kv_cache_context>(cache.get());
    }
}

llama_memory_h2o_context::llama_memory_h2o_context(
        llama_memory_h2o * memory,
        llama_kv_cache::slot_info_vec_t sinfos,
        llama_kv_cache::slot_info_vec_t dense_sinfos,
        std::vector<llama_ubatch> ubatches,
        std::vector<h2o_stream_call> calls,
        std::vector<std::vector<h2o_stream_step>> steps)
    : llama_kv_cache_context(memory->streams.front()->cache.get(), std::move(sinfos), ubatches), memory(memory),
      calls(std::move(calls)), steps(std::move(steps)) {
    if (const auto & cache = memory->streams.front()->dense_cache) {
        dense = std::make_unique<llama_kv_cache_context>(cache.get(), std::move(dense_sinfos), std::move(ubatches));
    }
}

llama_memory_h2o_context::~llama_memory_h2o_context() {
    for (auto & call : calls) {
        if (call.begun) {
            try {
                call.stream->rollback();
            } catch (const std::exception & e) { // a device that is gone, such as an RPC server: nothing of it can be used
                LLAMA_LOG_ERROR("%s: what the call has changed cannot be undone: %s\n", __func__, e.what());
            }
        }
    }
}

bool llama_memory_h2o_context::next() {
    i_step++;
    if (dense) {
        dense->next();
    }

    if (llama_kv_cache_context::next()) {
        return true;
    }

    for (auto & call : calls) {
        call.stream->sequence.end_call(call.n_tokens, call.steps.back().phase != h2o_step::DECODE);
        call.begun = false;
    }

    return false;
}

bool llama_memory_h2o_context::apply() {
    t_start_us = ggml_time_us();

    for (const auto & part : steps[i_step]) {
        auto & call = calls[part.i_call];
        if (!call.begun) {
            auto & sequence = part.stream->sequence;

            // decode steps change scores and memory sets only if they begin a chunk
            if (part.step.phase != h2o_step::DECODE || call.steps.size() > 1 || part.step.pos % sequence.config.chunk_size == 0) {
                sequence.begin_call(call.n_tokens, call.steps.back().phase == h2o_step::TAIL);
            }
            call.begun = true;
        }
    }

    // in phase 2 the cells are already there
    if (steps[i_step].front().step.stores_kv() && !(llama_kv_cache_context::apply() && (!dense || dense->apply()))) {
        return false;
    }

    uint32_t first = 0;
    for (const auto & part : steps[i_step]) {
        begin_step(part, first);
        first += part.step.n_tokens;
    }

    return true;
}

void llama_memory_h2o_context::begin_step(const h2o_stream_step & part, uint32_t first) {
    const auto & step = part.step;

    auto & sequence = part.stream->sequence;

    const uint32_t S = sequence.config.chunk_size;

    if (sequence.tiles) {
        if (step.stores_kv()) {
            read_text(part, first);
        }
        if (step.n_memory > 0) {
            sequence.tiles->choose(step.pos, step.pos + step.n_tokens);
        }
    }

    const int64_t t_select_us = ggml_time_us();
    if (step.phase != h2o_step::INTRA && sequence.begin_chunk(step.pos)) {
        t_start_us = ggml_time_us();

        sequence.stats.t_select_us += t_start_us - t_select_us;
        sequence.stats.n_select    += sequence.layers.size();
    }

    if (sequence.layout.is_compact && step.pos%S == 0) { // of the chunk before
        sequence.release_rows(sequence.layout.row_of(step.pos) + step.n_tokens);
    }

    if (step.phase == h2o_step::DECODE) {
        sequence.begin_generated(step.pos, step.n_tokens);
    } else {
        sequence.settle();
    }

    switch (step.phase) {
        case h2o_step::SINGLE_PASS:
            H2O_DEBUG("H2O_DEBUG_PHASES", "single_pass chunk_idx=%u ubatch.n_tokens=%u pos=%u n_memory=%u\n", step.pos/S, step.n_tokens, step.pos, step.n_memory);
            break;
        case h2o_step::TAIL:
            H2O_DEBUG("H2O_DEBUG_PHASES", "dense tail chunk_idx=%u ubatch.n_tokens=%u pos=%u\n", step.pos/S, step.n_tokens, step.pos);
            break;
        case h2o_step::INTRA:
            H2O_DEBUG("H2O_DEBUG_PHASES", "phase=1 ubatch.n_tokens=%u pos=%u\n", step.n_tokens, step.pos);
            break;
        case h2o_step::INTER:
            H2O_DEBUG("H2O_DEBUG_PHASES", "phase=2 chunk_idx=%u ubatch.n_tokens=%u has_prev=%d mem_init=%d\n",
                    step.pos/S, step.n_tokens, step.pos/S > 0, sequence.n_memory_sets() > 0);
            break;
        case h2o_step::DECODE:
            break;
    }
}

void llama_memory_h2o_context::read_text(const h2o_stream_step & part, uint32_t first) {
    const llama_token * token = get_ubatch().token;

    std::vector<int32_t> ids(part.step.n_tokens);
    for (uint32_t i = 0; i < part.step.n_tokens; ++i) {
        // what is no token is like no other
        ids[i] = token ? token[first + i] : -1 - (int32_t) (part.step.pos + i);
    }

    part.stream->sequence.tiles->append(ids.data(), ids.size());
}

bool llama_memory_h2o_context::finish(ggml_backend_sched_t sched) {
    ggml_backend_sched_synchronize(sched);

    const auto & parts = steps[i_step];

    for (const auto & part : parts) {
        if (part.stream->far) {
            part.stream->far->check();
        }
    }

    bool res = true;
    for (const auto & part : parts) {
        res = finish_step(part, (ggml_time_us() - t_start_us)/parts.size()) && res;
    }
    return res;
}

// t_us: the sequence's share of the time
bool llama_memory_h2o_context::finish_step(const h2o_stream_step & part, int64_t t_us) {
    const auto & step = part.step;

    auto & stream = *part.stream;
    auto & stats  = stream.sequence.stats;

    uint32_t n_done = step.offset + step.n_tokens;

    switch (step.phase) {
        case h2o_step::DECODE:
            stats.n_decode++;
            stats.t_decode_us += t_us;
            return true;
        case h2o_step::SINGLE_PASS:
            stats.n_single_pass++;
            stats.n_tokens_prefill += step.n_tokens;
            stats.t_single_pass_us += t_us;
            break;
        case h2o_step::TAIL:
            stats.n_tail++;
            stats.n_tokens_prefill += step.n_tokens;
            stats.t_tail_us += t_us;
            break;
        case h2o_step::INTRA:
            stats.n_phase1++;
            stats.n_tokens_prefill += step.n_tokens;
            stats.t_phase1_us += t_us;

            if (step.has_phase2) {
                n_done = 0;
                H2O_DEBUG("H2O_DEBUG_CACHE", "cache ready: n_tokens=%u base_pos=%u layers=%zu\n", step.n_tokens, step.pos, stream.sequence.layers.size());
            }
            break;
        case h2o_step::INTER:
            stats.n_phase2++;
            stats.t_phase2_us += t_us;
            break;
    }

    return !stream.progress || stream.progress(step.phase, n_done, calls[part.i_call].n_tokens, stream.progress_data);
}

std::vector<h2o_step> llama_memory_h2o_context::largest_steps() const {
    const auto & sequence = memory->streams.front()->sequence;

    return h2o_largest_steps(sequence.config, sequence.layout.n_positions(), memory->n_batch, memory->fused_attention);
}

void llama_memory_h2o_context::use_backends(const std::vector<ggml_backend_t> & backends) const {
    for (auto & stream : memory->streams) {
        stream->sequence.backends = backends;
    }
}

std::vector<h2o_stream_step> llama_memory_h2o_context::get_steps(const llama_ubatch & ubatch) const {
    if (!steps.empty()) {
        return steps[i_step];
    }

    auto * first = memory->streams.front().get();
    if (reserve_step.n_tokens > 0) {
        return { { first, reserve_step, 0 } };
    }

    const auto &   config   = first->sequence.config;
    const uint32_t n_memory = config.n_memory(first->sequence.layout.n_positions());

    // an index of keys grows with the text
    const uint32_t chunk_start = first->key_index ? config.chunk_start(first->sequence.layout.n_positions() - 1) : 0;

    std::vector<h2o_stream_step> res;

    if (ubatch.n_tokens > ubatch.n_seqs) {
        const auto phase = config.schedule == LLAMA_H2O_SCHEDULE_SINGLE_PASS ? h2o_step::SINGLE_PASS : h2o_step::INTER;

        // llama_context makes n_tokens a multiple of n_seqs, perhaps more than a chunk
        for (uint32_t n = 0; n < ubatch.n_tokens; n += config.chunk_size) {
            res.push_back({ first, { phase, chunk_start, std::min(config.chunk_size, ubatch.n_tokens - n), 0, n_memory, false }, 0 });
        }
        return res;
    }

    // at the end of a chunk
    const uint32_t n_decode_memory = config.decode == LLAMA_H2O_DECODE_MEMORY ? n_memory : 0;
    for (uint32_t s = 0; s < ubatch.n_tokens; ++s) {
        res.push_back({ memory->streams[s].get(), { h2o_step::DECODE, chunk_start + config.chunk_size - 1, 1, 0, n_decode_memory, false }, 0 });
    }
    return res;
}
