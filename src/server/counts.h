#pragma once

#include "common.h"
#include "json.h"
#include "llama.h"
#include "server/slots.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

// What a request, and /metrics, tell of slots.

// Why no more of a prompt was cached: a text in memory has other tokens from this one on.
struct server_h2o_stop {
    int32_t     token = -1; // < 0: none has
    std::string kept, asked; // a few tokens of both

    void add_to(common_json & about) const;
};

// Counts of one slot's sequence, or of all slots. Zero, and not shown, without H2O.
struct server_h2o_counts {
    uint64_t n_chunks   = 0; // begun
    uint64_t kv_kept    = 0; // bytes of K and V in the cache
    uint64_t kv_cold    = 0; // bytes in the cold store
    uint64_t kv_dropped = 0; // bytes that were evicted and dropped

    // The rest belongs to the request of one slot.
    bool            has_begun  = false;  // its prompt is being read, or was
    bool            takes_over = false;  // pieces of its text were moved
    int32_t         n_moved    = 0;      // their tokens, up to where the prompt has been read
    bool            thinks     = false;  // the next token is one of thoughts, or of their end
    int32_t         n_thoughts = 0;      // such tokens so far
    server_h2o_stop stop      = {};
    common_json     attention = nullptr; // which positions the prompt's tail has read, if that is asked

    void add(const server_h2o_counts & other);

    void add_token(bool thinks_then) { n_thoughts += std::exchange(thinks, thinks_then) || thinks_then; }

    // to a request's timings
    void add_timings(common_json & timings) const;

    // OpenAI's "prompt_tokens_details"
    common_json prompt_details(int32_t n_cached) const;

    // for /metrics: items of a name, a description and a value
    template <typename Item>
    std::vector<Item> gauges() const {
        if (n_chunks == 0) {
            return {};
        }
        return {
            { "h2o_chunks", "H2O: Number of chunks that the slots' sequences have begun", (double) n_chunks },
            { "h2o_kv_kept_bytes", "H2O: K and V of the slots' sequences in the cache", (double) kv_kept },
            { "h2o_kv_cold_bytes", "H2O: K and V of the slots' sequences in the cold store", (double) kv_cold },
            { "h2o_kv_dropped_bytes", "H2O: K and V of the slots' sequences that were evicted and dropped",
                (double) kv_dropped },
        };
    }
};

// Counts a slot's sequence anew.
void server_h2o_count(const llama_context * ctx, llama_seq_id id, server_h2o_counts & counts);

// What the tokens from `end` on, a prompt's tail, attended to among those before: the positions that each KV head read
// most, at most n_top, with the weights, and the sum of all weights; and the tokens' texts. Null while the prompt is
// being read. Afterwards the sequence keeps it no longer.
common_json server_h2o_attention(const llama_context * ctx, llama_seq_id id,
        const std::function<llama_token(size_t)> & token, int32_t n_prompt, int32_t end, int32_t n_top);

// of every slot, and of all of them
template <typename Slot>
void server_h2o_count(const llama_context * ctx, std::vector<Slot> & slots, server_h2o_counts & all) {
    all = {};
    for (auto & slot : slots) {
        auto & counts = slot.stats.h2o;
        server_h2o_count(ctx, slot.id, counts);
        if (counts.has_begun && slot.is_processing() && slot.task->h2o.n_attention > 0 && counts.attention.is_null()) {
            const auto & task = *slot.task;
            const auto token = [&](size_t i) { return task.tokens[i]; };
            counts.attention = server_h2o_attention(
                ctx, slot.id, token, task.n_tokens(), server_h2o_tail_begin(task), task.h2o.n_attention);
        }
        all.add(counts);
    }
}

// The text of a few tokens from token n on.
template <typename Tokens>
std::string server_h2o_text(const llama_context * ctx, const Tokens & tokens, size_t n) {
    std::string res;
    for (size_t i = n; i < std::min(n + 8, tokens.size()) && tokens[i] != LLAMA_TOKEN_NULL; ++i) {
        res += common_token_to_piece(ctx, tokens[i]);
    }
    return res;
}

// Notes where the nearest text of the slots, and of the cache of prompts if there is one, leaves the slot's prompt.
// Texts of other owners share nothing with it.
template <typename Slot, typename Cache>
void server_h2o_note_stop(
        const llama_context * ctx, Slot & slot, const std::vector<Slot> & slots, const Cache * cache) {
    const auto & prompt = slot.task->tokens;

    const auto * text = &slot.prompt.tokens;
    size_t       n    = text->get_common_prefix(prompt);

    const auto compare = [&](const auto & other) {
        if (const size_t n_other = other.prompt.tokens.get_common_prefix(prompt); n_other > n) {
            text = &other.prompt.tokens;
            n    = n_other;
        }
    };
    std::for_each(slots.begin(), slots.end(), compare);
    if (cache) {
        std::for_each(cache->states.begin(), cache->states.end(), compare);
    }
    if (n > 0 && n < text->size() && n < prompt.size()) {
        slot.stats.h2o.stop = { (int32_t) n, server_h2o_text(ctx, *text, n), server_h2o_text(ctx, prompt, n) };
    }
}
