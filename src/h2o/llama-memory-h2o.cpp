#include "llama-memory-h2o.h"

#include "llama-batch.h"
#include "llama-impl.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <utility>

static bool h2o_env(const char * name) {
    const char * value = getenv(name);
    return value && atoi(value) > 0;
}

// a line of the debug log on stderr, which the environment variable switches on
#define H2O_DEBUG(name, ...) do { static const bool on = h2o_env(name); if (on) { fprintf(stderr, "[H2O] " __VA_ARGS__); } } while (0)

//
// llama_memory_h2o
//

llama_memory_h2o::llama_memory_h2o(
        const llama_model & model,
                ggml_type   type_k,
                ggml_type   type_v,
                     bool   flash_attention,
                     bool   offload,
                 uint32_t   kv_size,
                 uint32_t   n_batch,
       const h2o_config   & config,
    const layer_filter_cb & filter)
    : stream(model, type_k, type_v, offload, kv_size, n_batch, config, filter),
      fused_attention(flash_attention && !h2o_env("H2O_NO_FUSED_ATTENTION")), flash_attention(flash_attention), n_batch(n_batch) {
    if (stream.key_index) {
        check_retrieval();
    }
}

void llama_memory_h2o::check_retrieval() const {
    for (const auto & layer : stream.sequence.layers) {
        if (!fused_attention || !stream.has_fused_retrieval(layer.il)) {
            throw std::runtime_error(format("[h2o] retrieval index needs attention as one operator, which layer %d does not have. Leave flash attention "
                        "on, H2O_NO_FUSED_ATTENTION unset and all layers on the CPU, or use retrieval ngrams", layer.il));
        }
    }
}

llama_memory_context_ptr llama_memory_h2o::init_batch(llama_batch_allocr & balloc, uint32_t n_ubatch, bool embd_all) {
    GGML_UNUSED(n_ubatch);
    GGML_UNUSED(embd_all);

    const uint32_t n_tokens  = balloc.get_n_tokens();
    const bool     is_decode = stream.call == LLAMA_H2O_CALL_DECODE || (stream.call == LLAMA_H2O_CALL_AUTO && n_tokens == 1);

    if (n_tokens > stream.sequence.layout.n_positions() - stream.sequence.n_tokens()) {
        return std::make_unique<llama_kv_cache_context>(LLAMA_MEMORY_STATUS_FAILED_PREPARE);
    }

    std::vector<h2o_step> steps = h2o_plan(stream.sequence.config, { stream.sequence.n_tokens(), n_tokens, stream.dense_tail, is_decode });

    std::vector<llama_ubatch>       ubatches;
    llama_kv_cache::slot_info_vec_t sinfos;
    llama_kv_cache::slot_info_vec_t dense_sinfos;

    balloc.split_reset();
    for (const auto & step : steps) {
        if (step.phase == h2o_step::INTER && step.offset == 0) {
            balloc.split_reset(); // the same tokens again
        }
        ubatches.push_back(balloc.split_simple(step.n_tokens));
        sinfos.push_back(stream.slots(step.pos, step.n_tokens));
        dense_sinfos.push_back(stream.dense_slots(step.pos, step.n_tokens));

        const auto & ubatch = ubatches.back();
        for (uint32_t i = 0; i < step.n_tokens; ++i) {
            if (ubatch.pos[i] != (llama_pos) (step.pos + i)) {
                LLAMA_LOG_ERROR("%s: H2O needs consecutive positions: expected %u, got %d\n", __func__, step.pos + i, ubatch.pos[i]);
                return std::make_unique<llama_kv_cache_context>(LLAMA_MEMORY_STATUS_FAILED_COMPUTE);
            }
        }
        if (step.has_phase2) {
            std::fill_n(ubatch.output, step.n_tokens, 0); // the outputs come from phase 2
        }
    }

    return std::make_unique<llama_memory_h2o_context>(this, std::move(sinfos), std::move(dense_sinfos), std::move(ubatches), std::move(steps));
}

llama_memory_context_ptr llama_memory_h2o::init_full() {
    return std::make_unique<llama_memory_h2o_context>(this);
}

llama_memory_context_ptr llama_memory_h2o::init_update(llama_context * lctx, bool optimize) {
    return stream.cache->init_update(lctx, optimize);
}

void llama_memory_h2o::clear(bool data) {
    stream.clear(data);
}

std::map<ggml_backend_buffer_type_t, size_t> llama_memory_h2o::memory_breakdown() const {
    return stream.memory_breakdown();
}

bool llama_memory_h2o::seq_rm(llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    GGML_UNUSED(seq_id);

    // llama_context::decode drops what a failed call has added
    stream.rollback();

    const llama_pos n_tokens = stream.sequence.n_tokens();

    if (p0 >= n_tokens) {
        return true;
    }
    if (p1 >= 0 && p1 < n_tokens) {
        LLAMA_LOG_ERROR("%s: H2O can only remove the end of a sequence, not positions [%d, %d) of %d\n", __func__, p0, p1, n_tokens);
        return false;
    }
    if (p0 <= 0) {
        clear(false);
        return true;
    }
    if (!stream.rewind(p0)) {
        LLAMA_LOG_ERROR("%s: H2O can remove positions from %u on, not from %d\n", __func__, stream.sequence.rewind_limit(), p0);
        return false;
    }
    return true;
}

[[noreturn]] static void h2o_refuse(const char * func) {
    throw std::runtime_error(format("[h2o] %s is not supported with H2O: it holds one sequence", func));
}

void llama_memory_h2o::seq_cp(llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1) {
    GGML_UNUSED(p0);
    GGML_UNUSED(p1);

    if (seq_id_src != seq_id_dst) {
        h2o_refuse("llama_memory_seq_cp");
    }
}

void llama_memory_h2o::seq_keep(llama_seq_id seq_id) {
    if (seq_id != 0) {
        clear(false);
    }
}

void llama_memory_h2o::seq_add(llama_seq_id seq_id, llama_pos p0, llama_pos p1, llama_pos shift) {
    GGML_UNUSED(seq_id);

    if (shift != 0 && p0 != p1) {
        h2o_refuse("llama_memory_seq_add");
    }
}

void llama_memory_h2o::seq_div(llama_seq_id seq_id, llama_pos p0, llama_pos p1, int d) {
    GGML_UNUSED(seq_id);

    if (d != 1 && p0 != p1) {
        h2o_refuse("llama_memory_seq_div");
    }
}

llama_pos llama_memory_h2o::seq_pos_min(llama_seq_id seq_id) const {
    if (seq_id != 0 || stream.sequence.n_tokens() == 0) {
        return -1;
    }
    return std::max(0, (llama_pos) stream.sequence.rewind_limit() - 1);
}

llama_pos llama_memory_h2o::seq_pos_max(llama_seq_id seq_id) const {
    return seq_id == 0 ? (llama_pos) stream.sequence.n_tokens() - 1 : -1;
}

//
// llama_memory_h2o_context
//

llama_memory_h2o_context::llama_memory_h2o_context(llama_memory_h2o * memory)
    : llama_kv_cache_context(memory->stream.cache.get()), memory(memory), stream(&memory->stream) {
    if (stream->dense_cache) {
        dense = std::make_unique<llama_kv_cache_context>(stream->dense_cache.get());
    }
}

llama_memory_h2o_context::llama_memory_h2o_context(
        llama_memory_h2o * memory,
        llama_kv_cache::slot_info_vec_t sinfos,
        llama_kv_cache::slot_info_vec_t dense_sinfos,
        std::vector<llama_ubatch> ubatches,
        std::vector<h2o_step> steps)
    : llama_kv_cache_context(memory->stream.cache.get(), std::move(sinfos), ubatches), memory(memory), stream(&memory->stream),
      steps(std::move(steps)), n_tokens_call(this->steps.back().offset + this->steps.back().n_tokens) {
    if (stream->dense_cache) {
        dense = std::make_unique<llama_kv_cache_context>(stream->dense_cache.get(), std::move(dense_sinfos), std::move(ubatches));
    }
}

llama_memory_h2o_context::~llama_memory_h2o_context() {
    if (begun) {
        stream->rollback();
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

    stream->sequence.end_call(n_tokens_call, steps.back().phase != h2o_step::DECODE);
    begun = false;

    return false;
}

bool llama_memory_h2o_context::apply() {
    const auto & step = steps[i_step];

    auto & sequence = stream->sequence;

    const uint32_t S = sequence.config.chunk_size;

    t_start_us = ggml_time_us();

    if (!begun) {
        // decode steps change scores never, and memory sets only if they begin a chunk
        if (step.phase != h2o_step::DECODE || steps.size() > 1 || step.pos % S == 0) {
            sequence.begin_call(n_tokens_call, steps.back().phase == h2o_step::TAIL);
        }
        begun = true;
    }

    // in phase 2 the cells are already there
    if (step.stores_kv() && !(llama_kv_cache_context::apply() && (!dense || dense->apply()))) {
        return false;
    }

    if (sequence.tiles) {
        if (step.stores_kv()) {
            read_text(step);
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

    return true;
}

void llama_memory_h2o_context::read_text(const h2o_step & step) {
    std::vector<int32_t> ids(step.n_tokens);
    for (uint32_t i = 0; i < step.n_tokens; ++i) {
        // what is no token is like no other
        ids[i] = get_ubatch().token ? get_ubatch().token[i] : -1 - (int32_t) (step.pos + i);
    }

    auto & tiles = *stream->sequence.tiles;

    tiles.append(ids.data(), ids.size());
}

bool llama_memory_h2o_context::finish(ggml_backend_sched_t sched) {
    const auto & step = steps[i_step];

    ggml_backend_sched_synchronize(sched);

    auto & stats = stream->sequence.stats;

    const int64_t t_us = ggml_time_us() - t_start_us;

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
                H2O_DEBUG("H2O_DEBUG_CACHE", "cache ready: n_tokens=%u base_pos=%u layers=%zu\n", step.n_tokens, step.pos, stream->sequence.layers.size());
            }
            break;
        case h2o_step::INTER:
            stats.n_phase2++;
            stats.t_phase2_us += t_us;
            break;
    }

    return !stream->progress || stream->progress(step.phase, n_done, n_tokens_call, stream->progress_data);
}

std::vector<h2o_step> llama_memory_h2o_context::largest_steps() const {
    return h2o_largest_steps(stream->sequence.config, stream->sequence.layout.n_positions(), memory->n_batch, memory->fused_attention);
}

h2o_step llama_memory_h2o_context::get_step(uint32_t n_tokens) const {
    if (!steps.empty()) {
        return steps[i_step];
    }
    if (reserve_step.n_tokens > 0) {
        return reserve_step;
    }

    const auto &   config   = stream->sequence.config;
    const uint32_t n_memory = config.n_memory(stream->sequence.layout.n_positions());

    // an index of keys grows with the text
    const uint32_t chunk_start = stream->key_index ? config.chunk_start(stream->sequence.layout.n_positions() - 1) : 0;

    if (n_tokens > 1) {
        return { config.schedule == LLAMA_H2O_SCHEDULE_SINGLE_PASS ? h2o_step::SINGLE_PASS : h2o_step::INTER, chunk_start, n_tokens, 0, n_memory, false };
    }
    // at the end of a chunk
    const uint32_t n_decode_memory = config.decode == LLAMA_H2O_DECODE_MEMORY ? n_memory : 0;
    return { h2o_step::DECODE, chunk_start + config.chunk_size - 1, 1, 0, n_decode_memory, false };
}
