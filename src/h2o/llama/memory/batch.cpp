// From a batch to steps, each with its ubatch.

#include "h2o/llama/memory/side/contexts.h"
#include "h2o/llama/memory/step-context.h"

#include "llama-batch.h"
#include "llama-impl.h"

#include <algorithm>
#include <map>
#include <utility>

// Calls without steps, in the order of their first tokens. Empty, with the reason logged, if the batch is refused.
static h2o_calls split_calls(const h2o_memory & memory, const llama_batch & batch) {
    h2o_calls res;
    std::map<llama_seq_id, h2o_call *> call_of;

    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        const llama_seq_id id = batch.seq_id[i][0];

        auto * kv = memory.sequence(id);
        if (batch.n_seq_id[i] != 1 || !kv) {
            LLAMA_LOG_ERROR("%s: H2O needs every token in one sequence from 0 to %zu\n", __func__,
                    memory.sequences().size() - 1);
            return {};
        }

        auto *& call = call_of[id];
        if (!call) {
            call = res.emplace_back(std::make_unique<h2o_call>(*kv, i)).get();
        }
        if (call->first + call->n_tokens != (uint32_t) i) {
            LLAMA_LOG_ERROR("%s: H2O needs a batch in which the tokens of a sequence are next to each other: "
                    "sequence %d comes again at token %d\n",
                    __func__, id, i);
            return {};
        }
        const uint32_t pos = call->start + call->n_tokens;
        if (batch.pos[i] != (llama_pos) pos) {
            LLAMA_LOG_ERROR("%s: H2O needs consecutive positions: expected %u, got %d\n", __func__, pos, batch.pos[i]);
            return {};
        }
        call->n_tokens++;
        call->has_logits = batch.logits[i] != 0;
    }
    return res;
}

// The ubatches of the first phases that a second one follows, by call: the same tokens come again.
static std::map<size_t, llama_ubatch> split_first_phases(llama_batch_allocr & balloc,
        const h2o_calls & calls) {
    std::map<size_t, llama_ubatch> res;

    if (std::none_of(calls.begin(), calls.end(),
            [](const auto & call) { return call->steps.front().has_phase2; })) {
        return res;
    }

    balloc.split_reset();
    for (size_t i = 0; i < calls.size(); ++i) {
        const auto & step = calls[i]->steps.front();

        llama_ubatch ubatch = balloc.split_simple(step.n_tokens);
        if (step.has_phase2) {
            std::fill_n(ubatch.output, step.n_tokens, 0); // the outputs come from phase 2
            res.emplace(i, std::move(ubatch));
        }
        if (calls[i]->n_tokens > step.n_tokens) {
            balloc.split_simple(calls[i]->n_tokens - step.n_tokens);
        }
    }
    return res;
}

// The number of calls from the i-th on in one ubatch. Views of a cache of windows need consecutive ids of sequences.
static size_t n_decoded_together(const h2o_calls & calls, size_t i, uint32_t n_ubatch,
        bool has_window) {
    size_t n = 1;
    while (n < n_ubatch && i + n < calls.size() && calls[i]->is_decoded_token() &&
            calls[i + n]->is_decoded_token() && calls[i + n]->first == calls[i]->first + n &&
            (!has_window || calls[i + n]->kv.id == calls[i]->kv.id + (llama_seq_id) n)) {
        n++;
    }
    return n;
}

llama_memory_context_ptr h2o_memory::init_batch(llama_batch_allocr & balloc, uint32_t n_ubatch, bool embd_all) {
    GGML_UNUSED(embd_all);

    h2o_calls calls = split_calls(*this, balloc.get_batch());
    if (calls.empty()) {
        return std::make_unique<llama_kv_cache_context>(LLAMA_MEMORY_STATUS_FAILED_COMPUTE);
    }

    for (auto & call : calls) {
        auto & kv = call->kv;
        if (call->n_tokens > store.layout.n_positions() - call->start) {
            return std::make_unique<llama_kv_cache_context>(LLAMA_MEMORY_STATUS_FAILED_PREPARE);
        }
        // rows of embeddings are a prompt's
        const bool is_token  = call->n_tokens == 1 && balloc.get_batch().token;
        const bool is_decode = kv.next_call == LLAMA_H2O_CALL_DECODE ||
                (kv.next_call == LLAMA_H2O_CALL_AUTO && is_token);

        call->steps = h2o_plan(config, { call->start, call->n_tokens, kv.dense_tail, n_ubatch, is_decode,
                kv.sequence.keep_attention, kv.sequence.keep_extra_keys });
    }

    std::map<size_t, llama_ubatch> first_phases = split_first_phases(balloc, calls);

    std::vector<llama_ubatch>               ubatches;
    std::vector<std::vector<h2o_call_step>> steps;

    balloc.split_reset();
    for (size_t i = 0, n = 0; i < calls.size(); i += n) {
        n = n_decoded_together(calls, i, n_ubatch, caches.side.window != nullptr);

        if (n > 1) {
            ubatches.push_back(balloc.split_simple(n));
            ubatches.back().b_equal_seqs = true; // a token of each
            steps.emplace_back();
            for (size_t j = i; j < i + n; ++j) {
                steps.back().push_back({ &calls[j]->kv, calls[j]->steps.front(), calls[j].get() });
            }
            continue;
        }
        for (const auto & step : calls[i]->steps) {
            ubatches.push_back(step.has_phase2 ? std::move(first_phases.at(i)) : balloc.split_seq(step.n_tokens));
            steps.push_back({ { &calls[i]->kv, step, calls[i].get() } });
        }
    }

    llama_kv_cache::slot_info_vec_t sinfos      (steps.size());
    llama_kv_cache::slot_info_vec_t dense_sinfos(steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
        for (const auto & [kv, step, call] : steps[i]) {
            h2o_add_slots(sinfos      [i], kv->id, store.layout.row_of(step.pos), step.n_tokens);
            h2o_add_slots(dense_sinfos[i], kv->id, step.pos,                      step.n_tokens);
        }
    }

    auto res = h2o_compose(std::make_unique<h2o_step_context>(*this, std::move(sinfos), std::move(dense_sinfos),
            ubatches, std::move(calls), std::move(steps)), ubatches);
    if (!res) {
        return std::make_unique<llama_kv_cache_context>(LLAMA_MEMORY_STATUS_FAILED_PREPARE);
    }
    return res;
}

llama_memory_context_ptr h2o_memory::init_full() {
    return h2o_compose(std::make_unique<h2o_step_context>(*this), {});
}
