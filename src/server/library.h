#pragma once

#include "server/requests.h"
#include "server/sharing.h"
#include "server/slots.h"
#include "server/texts.h"

#include "common.h"
#include "json.h"
#include "llama.h"
#include "server-http.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// The library in llama-server's slots: a slot takes the beginning of its prompt from the texts that outlive the server,
// and gives its own when an answer is done. Without such texts nothing here does anything.

// The texts, if this server may keep any. Each owner has a library (server/requests.h). Without API keys it is the user's
// own, and only for programs of this machine.
server_h2o_texts * server_h2o_kept_texts(const common_params & params);

// How many of a prompt's first tokens the texts of its owner have, by their ids.
common_json server_h2o_texts_like(const common_params & params, const std::vector<llama_token> & prompt);

// Only the server's loop uses it.
class server_h2o_library {
public:
    // With the first context. The adapters that the server was started with are part of its model. States of draft
    // models are not kept.
    void init(const common_params & params, bool has_draft_model);

    // Whether a slot can read its prompt. It waits until its own state is copied, and another slot has read the beginning
    // that both share. Then it asks for the text that has more of its beginning than the slot. False until the answer has
    // come: other slots continue meanwhile. is_alone: there are none, so it waits for a moment.
    template <typename Slot>
    bool is_ready(llama_context * ctx, Slot & slot, const std::vector<Slot> & slots, bool is_alone) {
        if (is_alone) {
            finish(slot.id);
        }
        if (copies.count(slot.id) > 0 || !server_h2o_share(ctx, slot, slots)) {
            return false;
        }
        if (!is_for(slot)) {
            return true;
        }
        const auto & prompt = slot.task->tokens;
        const auto   tokens = prompt.get_text_tokens();
        if (tokens.size() < prompt.size()) { // there are images
            return true;
        }
        const int32_t n_past = slot.prompt.tokens.get_common_prefix(prompt);

        return is_ready(slot.id, slot.task->tokens.h2o_owner, tokens, n_past, slot.n_ctx, is_alone);
    }

    // Gives the slot that text, if there is one.
    template <typename Slot>
    void take(llama_context * ctx, Slot & slot) {
        const auto text = take(ctx, slot.id);
        if (!text) {
            return;
        }
        if (text->empty()) { // the slot's own text is lost, too
            slot.prompt_clear();
            return;
        }
        slot.prompt.checkpoints.clear();
        slot.prompt.tokens = { *text, slot.prompt.tokens.has_mtmd };
        slot.prompt.tokens.h2o_owner = slot.task->tokens.h2o_owner;
    }

    // Keeps what a slot holds, if there is enough that is new.
    template <typename Slot>
    void give(llama_context * ctx, const Slot & slot, const std::vector<Slot> & slots) {
        leave(slot.id); // the request was cancelled
        server_h2o_drop_attention(ctx, slot.id);
        const auto goes_on = [&](const Slot & other) { return other.id != slot.id && other.is_processing(); };

        if (is_for(slot) && !slot.task->is_child()) {
            const auto tokens = slot.prompt.tokens.get_text_tokens();
            if (tokens.size() == slot.prompt.tokens.size() &&
                !is_aside(slot.task->tokens.h2o_owner, tokens, slot.task->n_tokens(), slot.stats.n_prompt_cached,
                    slot.task->params.message_spans)) {
                give(ctx, slot.id, slot.task->tokens.h2o_owner, tokens);
            }
        }
        const auto * model = llama_get_model(ctx); // where upstream keeps recurrent states they move
        const bool   moves = llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
        if ((moves && !server_h2o_enabled(ctx)) || std::none_of(slots.begin(), slots.end(), goes_on)) {
            finish();
        }
    }

    // Gives an idle slot to an owner, and copies first what another's request would remove.
    template <typename Slot>
    void begin(Slot & slot, const std::string & owner, bool is_child) {
        if (is_child || slot.prompt.tokens.h2o_owner != owner) {
            finish(slot.id);
        }
        server_h2o_own(slot, owner);
    }

    // Copies a part of the states of given texts, between two steps. changing: a slot whose state is copied to its end.
    void copy(llama_seq_id changing);

    // copies the states of given texts to their end: a slot's before it changes, or all
    void finish(llama_seq_id id);
    void finish();

    // server_h2o_piece_end() of a slot. Its prompt is also cut near its end, where other questions may begin.
    template <typename Slot>
    int32_t piece_end(const llama_context * ctx, const Slot & slot, int32_t n_room) const {
        const auto &         task = *slot.task;
        std::vector<int32_t> stops;
        if (task.need_sampling()) {
            stops = server_h2o_stops(task.params.message_spans, task.n_tokens());
            for (size_t i = 0; texts && task.n_tokens() >= texts->n_least && i < texts->marks.size(); ++i) {
                stops.push_back(task.n_tokens() - texts->marks[i]);
            }
        }
        return server_h2o_piece_end(ctx, slot.id, stops, slot.prompt.n_tokens(), task.n_tokens(), n_room);
    }

private:
    bool is_of_this_model(const server_h2o_adapters & adapters) const;

    template <typename Slot>
    bool is_for(const Slot & slot) const {
        const auto & task = *slot.task;
        return texts && task.need_sampling() && task.params.cache_prompt &&
            is_of_this_model(slot.prompt.lora);
    }

    using answer = std::future<std::optional<server_h2o_stored_text>>;

    struct question {
        std::string key;
        answer      found;
    };

    bool is_ready(llama_seq_id id, const std::string & key, const llama_tokens & prompt, int32_t n_past, int32_t n_ctx,
        bool is_alone);

    // The tokens that the sequence now has. None if it is as it was; empty if the state was refused.
    std::optional<llama_tokens> take(llama_context * ctx, llama_seq_id id);

    // nobody wants the answer any more
    void leave(llama_seq_id id);

    // whether the library has all but a few of these tokens, without asking it
    bool is_known(llama_seq_id id, const std::string & key, const llama_tokens & tokens);

    // Whether a prompt wraps one of the latest conversations, with its answer, in other words, as clients do once to ask
    // for a title or for tags. A repeated prompt does not count: half of it was cached. Nor does one that has answers: it
    // continues the conversation, with other tools say.
    bool is_aside(const std::string & key, const llama_tokens & tokens, size_t n_prompt, size_t n_cached,
        const common_chat_msg_spans & messages);

    void give(llama_context * ctx, llama_seq_id id, const std::string & key, const llama_tokens & tokens);

    server_h2o_texts * texts = nullptr;
    std::vector<float> scales; // of the adapters that the server was started with

    // by the slot that waits for it, and those for which none does
    std::map<llama_seq_id, question> asked;
    std::list<answer>                left;

    // by slot: the text that the library was last seen with, and its key
    std::map<llama_seq_id, std::pair<std::string, llama_tokens>> known;
    int n_removed = 0; // when it was right

    struct conversation {
        std::string  key;
        llama_tokens tokens;
        size_t       n_prompt;
    };

    std::list<conversation> conversations; // the latest ones

    struct copied_text {
        const llama_context *           ctx;
        server_h2o_given_text           text;
        std::unique_ptr<h2o_state_copy> state;
    };

    // copies n bytes more of a slot's state, if it was given, and gives it to the writer when that was all
    void copy_next(llama_seq_id id, size_t n);

    std::map<llama_seq_id, copied_text>   copies; // by slot
    std::chrono::steady_clock::time_point last_copy; // when it ended
};
