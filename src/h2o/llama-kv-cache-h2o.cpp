#include "llama-kv-cache-h2o.h"

#include "h2o-kv.h"

#include "llama-hparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <cstdlib>
#include <stdexcept>

static bool h2o_env(const char * name) {
    const char * value = getenv(name);
    return value && atoi(value) > 0;
}

bool h2o_step::operator==(const h2o_step & other) const {
    return phase == other.phase && pos == other.pos && n_tokens == other.n_tokens && offset == other.offset &&
        n_memory == other.n_memory && has_phase2 == other.has_phase2;
}

//
// llama_kv_cache_h2o
//

void llama_kv_cache_h2o::check_model(const llama_model & model) {
    const auto & hparams = model.hparams;

    const char * reason = nullptr;

    if (hparams.is_mla()) {
        reason = "uses multi-head latent attention (MLA)";
    } else if (hparams.swa_type != LLAMA_SWA_TYPE_NONE) {
        reason = "uses sliding-window attention";
    } else if (llama_model_is_recurrent(&model) || llama_model_is_hybrid(&model)) {
        reason = "is recurrent";
    } else if (!hparams.causal_attn) {
        reason = "has no causal attention";
    } else if (hparams.use_alibi || hparams.f_max_alibi_bias > 0.0f) {
        reason = "uses ALiBi position biases";
    } else if (model.arch == LLM_ARCH_T5) {
        reason = "uses relative position biases";
    } else if (hparams.attn_soft_cap) {
        reason = "caps its attention logits";
    } else if (model.arch == LLM_ARCH_GROK) {
        reason = "scales its attention logits in its own way";
    }

    if (reason) {
        throw std::runtime_error(format("[h2o] H2O does not work with this model: %s %s. Switch H2O off for it", model.arch_name().c_str(), reason));
    }
}

static std::vector<h2o_state::layer_dims> h2o_layer_dims(const llama_model & model, const std::vector<uint32_t> & layer_ids, bool offload) {
    const auto & hparams = model.hparams;

    std::vector<h2o_state::layer_dims> res;
    for (const uint32_t il : layer_ids) {
        // a layer without KV heads has no attention
        if (hparams.n_head_kv(il) > 0) {
            res.push_back({ (int32_t) il, hparams.n_head(il), hparams.n_head_kv(il), h2o_layer_device(model, il, offload) });
        }
    }
    return res;
}

llama_kv_cache_h2o::llama_kv_cache_h2o(
        const llama_model & model,
                ggml_type   type_k,
                ggml_type   type_v,
                     bool   v_trans,
                     bool   offload,
                 uint32_t   kv_size,
                 uint32_t   n_batch,
       const h2o_config   & config,
    const layer_filter_cb & filter)
    : llama_kv_cache(model, model.hparams, type_k, type_v, v_trans, offload, /*unified =*/ true, kv_size, /*n_seq_max =*/ 1, /*n_pad =*/ 1,
            /*n_swa =*/ 0, LLAMA_SWA_TYPE_NONE, nullptr, filter, nullptr, nullptr),
      state(config, kv_size, h2o_layer_dims(model, get_layer_ids(), offload)),
      fused_attention(!v_trans && !h2o_env("H2O_NO_FUSED_ATTENTION")), model(model), v_trans(v_trans), offload(offload) {
    if (n_batch > 0 && config.schedule == LLAMA_H2O_SCHEDULE_TWO_PHASE) {
        intra = std::make_unique<h2o_intra>(model, get_layer_ids(), n_batch, offload);
    }
    state.read_keys = [this](int32_t il, uint32_t p0, uint32_t p1, std::vector<float> & k) { read_aligned_keys(il, p0, p1, k); };
    reset_stats();

    LLAMA_LOG_INFO("%s: H2O: S = %u, L = %u, H = %u, A = %u, scorer %s, pooling %u, scores %.2f MiB, memory sets %.2f MiB, intra state %.2f MiB\n", __func__,
            config.chunk_size, config.local_window, config.heavy_budget, config.sink_tokens, config.scorer->name(), config.pooling,
            stats.bytes_scores/1024.0/1024.0, stats.bytes_memory/1024.0/1024.0, stats.bytes_intra/1024.0/1024.0);
}

llama_memory_context_ptr llama_kv_cache_h2o::init_batch(llama_batch_allocr & balloc, uint32_t n_ubatch, bool embd_all) {
    GGML_UNUSED(n_ubatch);
    GGML_UNUSED(embd_all);

    const auto fail = [] { return std::make_unique<llama_kv_cache_context>(LLAMA_MEMORY_STATUS_FAILED_PREPARE); };

    const uint32_t pos      = state.n_tokens();
    const uint32_t n_tokens = balloc.get_n_tokens();
    const uint32_t S        = state.config.chunk_size;

    if (pos + n_tokens > get_size()) {
        return fail();
    }

    slot_info_vec_t           sinfos;
    std::vector<llama_ubatch> ubatches;
    std::vector<h2o_step>     steps;

    const auto add_step = [&](const h2o_step & step) {
        ubatches.push_back(balloc.split_simple(step.n_tokens));
        sinfos.push_back(slots(step.pos, step.n_tokens));
        steps.push_back(step);
    };

    balloc.split_reset();

    // the tokens [offset, end) of the call, cut where chunks begin
    const auto add_pieces = [&](h2o_step::phase_t phase, uint32_t offset, uint32_t end) {
        while (offset < end) {
            const uint32_t p = pos + offset;
            const uint32_t n = std::min(end - offset, S - p%S);

            add_step({ phase, p, n, offset, phase == h2o_step::TAIL ? 0 : state.n_memory(p/S*S), false });
            offset += n;
        }
    };

    const uint32_t n_sparse = n_tokens - std::min(dense_tail, n_tokens);

    if (n_tokens == 1) {
        add_step({ h2o_step::DECODE, pos, 1, 0, 0, false });
    } else if (state.config.schedule == LLAMA_H2O_SCHEDULE_SINGLE_PASS) {
        add_pieces(h2o_step::SINGLE_PASS, 0, n_sparse);
        add_pieces(h2o_step::TAIL, n_sparse, n_tokens);
    } else {
        const bool has_phase2 = n_sparse > 0 && pos + n_sparse > S;

        if (n_sparse > 0) {
            add_step({ h2o_step::INTRA, pos, n_sparse, 0, 0, has_phase2 });
        }
        if (has_phase2) {
            // the outputs come from phase 2
            for (uint32_t i = 0; i < n_sparse; ++i) {
                ubatches[0].output[i] = 0;
            }

            balloc.split_reset();
            add_pieces(h2o_step::INTER, 0, n_sparse);
        }
        add_pieces(h2o_step::TAIL, n_sparse, n_tokens);
    }

    for (size_t i_step = 0; i_step < steps.size(); ++i_step) {
        for (uint32_t i = 0; i < steps[i_step].n_tokens; ++i) {
            const llama_pos expected = steps[i_step].pos + i;
            if (ubatches[i_step].pos[i] != expected) {
                LLAMA_LOG_ERROR("%s: H2O needs consecutive positions: expected %d, got %d\n", __func__, expected, ubatches[i_step].pos[i]);
                return fail();
            }
        }
    }

    return std::make_unique<llama_kv_cache_h2o_context>(this, std::move(sinfos), std::move(ubatches), std::move(steps));
}

llama_memory_context_ptr llama_kv_cache_h2o::init_full() {
    return std::make_unique<llama_kv_cache_h2o_context>(this);
}

void llama_kv_cache_h2o::clear(bool data) {
    llama_kv_cache::clear(data);
    state.clear();
    reset_stats();
}

// the sizes stay, the counts and times begin again
void llama_kv_cache_h2o::reset_stats() {
    stats = {};

    for (const auto & [buft, size] : memory_breakdown()) {
        stats.bytes_kv += size;
    }
    stats.bytes_scores = state.n_bytes_scores();
    stats.bytes_memory = state.n_bytes_memory();
    stats.bytes_intra  = intra ? intra->n_bytes() : 0;
}

bool llama_kv_cache_h2o::seq_rm(llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    GGML_UNUSED(seq_id);

    // llama_context::decode drops what a failed call has added
    rollback();

    const llama_pos n_tokens = state.n_tokens();

    if (p0 >= n_tokens) {
        return true;
    }
    if (p0 <= 0 && (p1 < 0 || p1 >= n_tokens)) {
        clear(false);
        return true;
    }

    LLAMA_LOG_ERROR("%s: H2O can only remove the whole sequence, not positions [%d, %d)\n", __func__, p0, p1);
    return false;
}

[[noreturn]] static void h2o_refuse(const char * func) {
    throw std::runtime_error(format("[h2o] %s is not supported with H2O: it holds one sequence", func));
}

void llama_kv_cache_h2o::seq_cp(llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1) {
    GGML_UNUSED(p0);
    GGML_UNUSED(p1);

    if (seq_id_src != seq_id_dst) {
        h2o_refuse("llama_memory_seq_cp");
    }
}

void llama_kv_cache_h2o::seq_keep(llama_seq_id seq_id) {
    if (seq_id != 0) {
        clear(false);
    }
}

void llama_kv_cache_h2o::seq_add(llama_seq_id seq_id, llama_pos p0, llama_pos p1, llama_pos shift) {
    GGML_UNUSED(seq_id);

    if (shift != 0 && p0 != p1) {
        h2o_refuse("llama_memory_seq_add");
    }
}

void llama_kv_cache_h2o::seq_div(llama_seq_id seq_id, llama_pos p0, llama_pos p1, int d) {
    GGML_UNUSED(seq_id);

    if (d != 1 && p0 != p1) {
        h2o_refuse("llama_memory_seq_div");
    }
}

void llama_kv_cache_h2o::state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const {
    GGML_UNUSED(io);
    GGML_UNUSED(seq_id);
    GGML_UNUSED(flags);

    h2o_refuse("saving the state");
}

void llama_kv_cache_h2o::state_read(llama_io_read_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) {
    GGML_UNUSED(io);
    GGML_UNUSED(seq_id);
    GGML_UNUSED(flags);

    h2o_refuse("loading a state");
}

void llama_kv_cache_h2o::rollback() {
    state.rollback();
    llama_kv_cache::seq_rm(0, state.n_tokens(), -1);
}

void llama_kv_cache_h2o::profile_part(h2o_part part) {
    const int64_t t_us = ggml_time_us();

    switch (part) {
        case H2O_PART_GATHER:    stats.t_gather_us    += t_us - t_part_us; break;
        case H2O_PART_ATTENTION: stats.t_attention_us += t_us - t_part_us; break;
        case H2O_PART_SCORES:    stats.t_scores_us    += t_us - t_part_us; break;
        case H2O_PART_REST:
        case H2O_PART_COUNT:     break;
    }
    t_part_us = t_us;
}

llama_kv_cache::slot_info llama_kv_cache_h2o::slots(uint32_t pos, uint32_t n_tokens) const {
    slot_info res;
    res.s0 = 0;
    res.s1 = 0;
    res.resize(1);
    res.strm[0] = 0;
    for (uint32_t i = 0; i < n_tokens; ++i) {
        res.idxs[0].push_back(pos + i);
    }
    return res;
}

void llama_kv_cache_h2o::set_rope(int32_t il, const ggml_tensor * k) {
    if (state.config.scorer->uses_attention() || ropes.count(il)) {
        return;
    }

    for (const auto & [il_other, rope] : ropes) {
        if (rope->is_of(k)) {
            ropes[il] = rope;
            return;
        }
    }
    ropes[il] = std::make_shared<h2o_rope>(k, state.config.chunk_size);
}

void llama_kv_cache_h2o::read_aligned_keys(int32_t il, uint32_t p0, uint32_t p1, std::vector<float> & k) const {
    const uint32_t n_head_kv = model.hparams.n_head_kv(il);
    const uint32_t d         = model.hparams.n_embd_head_k(il);

    const auto rope = ropes.find(il);

    h2o_kv_get_k_rows(*this, il, p0, p1, k, [&](uint32_t i, float * row) {
        if (rope != ropes.end()) {
            rope->second->turn_back(i, row, n_head_kv, d);
        }
    });
}

ggml_backend_dev_t llama_kv_cache_h2o::device(int32_t il) const {
    return h2o_layer_device(model, il, offload);
}

ggml_tensor * llama_kv_cache_h2o::keys(ggml_context * ctx, int32_t il) const {
    return ggml_permute(ctx, get_k(ctx, il, get_size(), slots(0, 1)), 0, 2, 1, 3);
}

ggml_tensor * llama_kv_cache_h2o::key_rows(ggml_context * ctx, int32_t il, uint32_t n_memory, uint32_t n_chunk) const {
    ggml_tensor * t = state.layer(il)->keys;

    return ggml_view_2d(ctx, t, n_memory + n_chunk, t->ne[1], t->nb[1], (state.config.memory_size() - n_memory)*t->nb[0]);
}

ggml_tensor * llama_kv_cache_h2o::values(ggml_context * ctx, int32_t il) const {
    return ggml_permute(ctx, get_v(ctx, il, get_size(), slots(0, 1)), 0, 2, 1, 3);
}

//
// llama_kv_cache_h2o_context
//

llama_kv_cache_h2o_context::llama_kv_cache_h2o_context(llama_kv_cache_h2o * kv) : llama_kv_cache_context(kv), kv(kv) {
}

llama_kv_cache_h2o_context::llama_kv_cache_h2o_context(
        llama_kv_cache_h2o * kv,
        llama_kv_cache::slot_info_vec_t sinfos,
        std::vector<llama_ubatch> ubatches,
        std::vector<h2o_step> steps)
    : llama_kv_cache_context(kv, std::move(sinfos), std::move(ubatches)), kv(kv), steps(std::move(steps)),
      n_tokens_call(this->steps.back().offset + this->steps.back().n_tokens) {
}

llama_kv_cache_h2o_context::~llama_kv_cache_h2o_context() {
    if (begun) {
        kv->rollback();
    }
}

bool llama_kv_cache_h2o_context::next() {
    i_step++;

    if (llama_kv_cache_context::next()) {
        return true;
    }

    kv->state.end_call();
    kv->state.add_tokens(n_tokens_call);
    begun = false;

    return false;
}

bool llama_kv_cache_h2o_context::apply() {
    const auto & step = steps[i_step];

    t_start_us = ggml_time_us();

    if (!begun) {
        // a decode step changes scores never, and memory sets only if it begins a chunk
        if (step.phase != h2o_step::DECODE || step.pos % kv->state.config.chunk_size == 0) {
            kv->state.begin_call(n_tokens_call, steps.back().phase == h2o_step::TAIL);
        }
        begun = true;
    }

    // in phase 2 the cells are already there
    if (step.phase != h2o_step::INTER && !llama_kv_cache_context::apply()) {
        return false;
    }

    const int64_t t_select_us = ggml_time_us();
    if (step.phase != h2o_step::INTRA && kv->state.begin_chunk(step.pos)) {
        t_start_us = ggml_time_us();

        kv->stats.t_select_us += t_start_us - t_select_us;
        kv->stats.n_select    += kv->state.layers.size();
    }

    static const bool debug_phases = h2o_env("H2O_DEBUG_PHASES");
    const uint32_t chunk_idx = step.pos/kv->state.config.chunk_size;
    if (debug_phases && step.phase == h2o_step::SINGLE_PASS) {
        fprintf(stderr, "[H2O] single_pass chunk_idx=%u ubatch.n_tokens=%u pos=%u n_memory=%u\n", chunk_idx, step.n_tokens, step.pos, step.n_memory);
    }
    if (debug_phases && step.phase == h2o_step::TAIL) {
        fprintf(stderr, "[H2O] dense tail chunk_idx=%u ubatch.n_tokens=%u pos=%u\n", chunk_idx, step.n_tokens, step.pos);
    }
    if (debug_phases && step.phase == h2o_step::INTRA) {
        fprintf(stderr, "[H2O] phase=1 ubatch.n_tokens=%u pos=%u\n", step.n_tokens, step.pos);
    }
    if (debug_phases && step.phase == h2o_step::INTER) {
        fprintf(stderr, "[H2O] phase=2 chunk_idx=%u ubatch.n_tokens=%u has_prev=%d mem_init=%d\n",
                chunk_idx, step.n_tokens, chunk_idx > 0, kv->state.n_memory_sets() > 0);
    }

    return true;
}

bool llama_kv_cache_h2o_context::has_outputs() const {
    return !steps[i_step].has_phase2;
}

bool llama_kv_cache_h2o_context::finish(ggml_backend_sched_t sched) {
    const auto & step = steps[i_step];

    ggml_backend_sched_synchronize(sched);

    auto & stats = kv->stats;

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

                static const bool debug_cache = h2o_env("H2O_DEBUG_CACHE");
                if (debug_cache) {
                    fprintf(stderr, "[H2O] cache ready: n_tokens=%u base_pos=%u layers=%zu\n", step.n_tokens, step.pos, kv->state.layers.size());
                }
            }
            break;
        case h2o_step::INTER:
            stats.n_phase2++;
            stats.t_phase2_us += t_us;
            break;
    }

    return !kv->progress || kv->progress(step.phase, n_done, n_tokens_call, kv->progress_data);
}

h2o_step llama_kv_cache_h2o_context::get_step(uint32_t n_tokens) const {
    if (!steps.empty()) {
        return steps[i_step];
    }

    // reserve: a whole chunk with a full memory set. The graph of phase 1 depends on the call
    if (n_tokens > 1) {
        const auto phase = kv->state.config.schedule == LLAMA_H2O_SCHEDULE_SINGLE_PASS ? h2o_step::SINGLE_PASS : h2o_step::INTER;

        return { phase, 0, n_tokens, 0, kv->state.n_memory(kv->get_size()), false };
    }
    return { h2o_step::DECODE, 0, 1, 0, 0, false };
}
