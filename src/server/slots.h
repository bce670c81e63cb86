#pragma once

#include "chat.h"
#include "common.h"
#include "llama-h2o.h"
#include "llama.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

struct mtmd_context;

// H2O as a property of llama-server's slots: a slot is a sequence of the context. Where H2O is off nothing here changes
// anything.

// Makes slots independent of each other. False, with the reason logged, for what H2O cannot do.
bool server_h2o_prepare(common_params & params);

// One line: the model, the longest text, and the address.
void server_h2o_announce(const common_params & params, int32_t n_ctx, const std::vector<std::string> & at);

// Lets the sequences of a new context be rewound to the ends of their chunks. Upstream learns that it need not make
// checkpoints; without H2O it decides by itself.
common_context_seq_rm_type server_h2o_init(llama_context * ctx, const common_params & params);

bool server_h2o_enabled(const llama_context * ctx);

// How many tokens a slot may have, which is n_ctx but where eviction bounds the memory: there a text is never too long.
int32_t server_h2o_n_ctx(const llama_context * ctx, int32_t n_ctx);

// How many tokens an answer may have, -1 if n_ctx ends it. Where a text is never too long, no limit means the model's
// trained length: some models never end an answer.
int32_t server_h2o_n_predict(const llama_context * ctx, int32_t n_predict);

// Whether the projector's images and sounds can be read with H2O; if not, the reason is logged. Always true without
// H2O.
bool server_h2o_takes_media(const llama_context * ctx, const mtmd_context * projector);

// whether a text that ends after n tokens ends inside an image
using server_h2o_is_inside = std::function<bool(int32_t)>;

// Where the tokens begin that attend to everything: the last user's message and all after it, up to a limit.
// last_user_pos < 0: the prompt of n_prompt tokens has no messages.
int32_t server_h2o_tail_begin(int32_t last_user_pos, int32_t n_prompt);

template <typename Task>
int32_t server_h2o_tail_begin(const Task & task) {
    return server_h2o_tail_begin(task.params.message_spans.last_user_message_pos(), task.n_tokens());
}

// Rewinds the slot's sequence, whose first n_past tokens are those of a prompt of n_prompt tokens. Returns how many it
// still holds: as many as possible, but never the whole prompt or a part of an image.
int32_t server_h2o_rewind(
    llama_context * ctx, llama_seq_id id, const server_h2o_is_inside & is_inside, int32_t n_past, int32_t n_prompt);

// The state of a slot's sequence. Without H2O its rows have never moved.
llama_h2o_info server_h2o_info(const llama_context * ctx, llama_seq_id id);

// --cache-reuse: the sequence keeps at most n_past tokens, and pieces of its text, of at least n_min tokens, come to where
// the prompt has them before `end`: it takes them over when it is read up to them. Returns how many tokens are kept; < 0:
// the prompt has no such pieces.
int32_t server_h2o_arrange(llama_context * ctx, llama_seq_id id, const llama_tokens & text, const llama_tokens & prompt,
    int32_t n_past, int32_t end, int32_t n_min);

// The same for a slot. A prompt whose attention is asked for reads its tail again. A text that was put together of
// pieces is continued only with --cache-reuse.
template <typename Slot>
int32_t server_h2o_rewind(llama_context * ctx, Slot & slot, int32_t n_past) {
    const auto &  task = *slot.task;
    const int32_t tail = server_h2o_tail_begin(task), n_min = task.params.n_cache_reuse;
    if (task.h2o.n_attention > 0) {
        n_past = std::min(n_past, tail);
    }
    if (n_min == 0) {
        n_past = std::min<uint32_t>(n_past, server_h2o_info(ctx, slot.id).exact_end);
    } else if (task.params.cache_prompt && task.n_tokens_shared == 0 && slot.alora_invocation_start <= 0 &&
               !slot.prompt.tokens.has_mtmd && !task.tokens.has_mtmd) {
        const int32_t n_kept = server_h2o_arrange(
            ctx, slot.id, slot.prompt.tokens.get_tokens(), task.tokens.get_tokens(), n_past, tail, n_min);
        if (n_kept >= 0) {
            slot.stats.h2o.takes_over = true;
            return n_kept;
        }
    }
    const auto is_inside = [&tokens = slot.prompt.tokens](int32_t n) {
        return n > 0 && n < (int32_t) tokens.size() && tokens[n - 1] == LLAMA_TOKEN_NULL &&
            tokens[n] == LLAMA_TOKEN_NULL;
    };
    return server_h2o_rewind(ctx, slot.id, is_inside, n_past, task.n_tokens());
}

// Whether the cache of prompts in RAM has so much more of a prompt than a slot with its first n tokens that the slot
// changes texts.
template <typename Cache, typename Tokens>
bool server_h2o_has_more(const Cache & cache, size_t n, const Tokens & prompt) {
    return std::any_of(cache.states.begin(), cache.states.end(),
        [&](const auto & state) { return state.prompt.tokens.get_common_prefix(prompt) >= n + 64; });
}

// Keeps the slot's text in that cache if the prompt will remove an eighth of it or more.
template <typename Slot, typename Cache, typename Tokens>
void server_h2o_keep_text(const Slot & slot, Cache & cache, const Tokens & prompt) {
    const auto & text = slot.prompt.tokens;
    if (text.get_common_prefix(prompt) < text.size() - text.size()/8) {
        slot.prompt_save(cache);
    }
}

using server_h2o_adapters = std::vector<common_adapter_lora_info>;

// Saves a slot: llama.cpp's state of its sequence, its tokens, and which adapters it was computed with. Returns the number
// of bytes written, 0 if that failed: an older file is then left as it was.
size_t server_h2o_save_slot(llama_context * ctx, const std::string & path, llama_seq_id id,
        const server_h2o_adapters & adapters, const llama_token * tokens, size_t n_tokens);

// Reads adapters of such a file from byte n_bytes on, the end of its state; n_bytes becomes their end. `adapters` are the
// server's; they get the scales that the state was computed with. Throws std::runtime_error if the file is damaged, or the
// server lacks one of the adapters.
void server_h2o_load_adapters(const std::string & path, size_t & n_bytes, server_h2o_adapters & adapters);

template <typename Prompt>
void server_h2o_load_slot(const std::string & path, const common_params & params, size_t & n_bytes, Prompt & prompt,
        const std::string & owner) {
    prompt.tokens.h2o_owner = owner;
    prompt.lora             = params.lora_adapters;
    server_h2o_load_adapters(path, n_bytes, prompt.lora);
}

// The number in a part of a path. Throws std::invalid_argument unless it is one from 0 on and below the limit.
int32_t server_h2o_number_below(const std::string & value, int32_t limit);

// Says what a slot's tokens in the next call are: generated ones, or a prompt's, the last n_tail of which attend to
// everything.
void server_h2o_set_call(llama_context * ctx, llama_seq_id id, bool is_prompt, uint32_t n_tail);

// Whether the next call keeps what its tail attends to. `begins`: weights kept before are another prompt's.
void server_h2o_keep_attention(const llama_context * ctx, llama_seq_id id, bool keeps, bool begins);

// A request has ended: what its prompt's tail attended to is kept no longer.
void server_h2o_drop_attention(const llama_context * ctx, llama_seq_id id);

// Where a prompt is cut, so that the slot can be rewound to there: where users' messages begin. A prompt without messages
// may be sent again: near its end.
std::vector<int32_t> server_h2o_stops(const common_chat_msg_spans & spans, int32_t n_prompt);

// The end of a prompt's piece for the next call: n_past tokens of n_prompt are read, the call takes n_room more. A piece
// ends at a stop, with its chunk or with a tile, so an answer does not depend on the other slots, and where moved rows
// begin. n_past: it waits for more room.
int32_t server_h2o_piece_end(const llama_context * ctx, llama_seq_id id, const std::vector<int32_t> & stops,
    int32_t n_past, int32_t n_prompt, int32_t n_room);

// Prepares a slot for the prompt's tokens [pos, end) in the next call. At most n_dense attend to everything.
template <typename Slot>
void server_h2o_begin_prompt(llama_context * ctx, Slot & slot, int32_t pos, int32_t end, int32_t n_dense) {
    const int32_t tail_begin = server_h2o_tail_begin(*slot.task);

    slot.stats.h2o.has_begun = true;
    server_h2o_set_call(ctx, slot.id, true, std::clamp(end - tail_begin, 0, n_dense));
    server_h2o_keep_attention(ctx, slot.id, slot.task->h2o.n_attention > 0, pos <= tail_begin);
}

// The slot's prompt has been read up to pieces that were moved: they are part of its text now.
template <typename Slot>
void server_h2o_take_over(const llama_context * ctx, Slot & slot) {
    if (!slot.stats.h2o.takes_over) {
        return;
    }
    for (int32_t i = slot.prompt.n_tokens(), n = server_h2o_info(ctx, slot.id).n_tokens; i < n; ++i) {
        slot.prompt.tokens.push_back(slot.task->tokens[i]);
        slot.stats.h2o.n_moved++;
        slot.stats.n_prompt_cached++;
    }
}

// Prepares every slot for a call with n tokens of upstream's batch, from `off` on.
template <typename Token, typename Slot>
void server_h2o_begin(
        llama_context * ctx, const std::vector<Token> & tokens, int32_t off, int32_t n, std::vector<Slot> & slots) {
    for (int32_t i = off, n_slot = 0; i < off + n; i += n_slot) {
        const auto & t    = tokens[i];
        auto       & slot = slots[t.id_slot];
        for (n_slot = 1; i + n_slot < off + n && tokens[i + n_slot].id_slot == t.id_slot; ++n_slot) {}

        const int32_t end = t.pos[0] + n_slot;

        if (t.is_prompt && slot.task) {
            server_h2o_begin_prompt(ctx, slot, t.pos[0], end, n_slot);
        } else {
            server_h2o_set_call(ctx, t.id_slot, t.is_prompt, 0);
        }
    }
}

// Prepares a slot for the n rows of an image or a sound, which upstream gives to llama_decode by itself. What is said
// here is about one call: rows that take several attend to no more than their memory.
template <typename Slot>
void server_h2o_begin_media(llama_context * ctx, Slot & slot, int32_t n) {
    const int32_t pos = slot.prompt.n_tokens();

    server_h2o_begin_prompt(ctx, slot, pos, pos + n, n > (int32_t) llama_n_batch(ctx) ? 0 : n);
}
