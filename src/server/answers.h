#pragma once

#include "chat.h"
#include "common.h"
#include "json.h"

#include <algorithm>
#include <string>
#include <vector>

struct server_task_result_cmpl_final;

size_t validate_utf8(const std::string & text); // upstream's

// What an answer says, and its end.

// The message that an answer's text is: `so_far` is known, and `added` is new. What cannot be parsed is content:
// `unparsed`, the text after the last that could be; of an answer that is not complete, nothing.
common_chat_msg server_h2o_parse(common_chat_session & session, const common_chat_input & added, bool is_partial,
        const common_chat_msg & so_far, std::string & unparsed);

// A token is sent once the answer certainly has a part of its text: no stop string, nor a character that is not complete,
// has all of it. Log-probabilities are those of the tokens that were sent.
template <typename Slot, typename F>
void server_h2o_tell(Slot & slot, F tell) {
    const size_t n_told = slot.n_sent_text;
    slot.n_sent_text = validate_utf8(slot.generated.text);
    size_t begin = 0;
    for (const auto & token : slot.generated_token_probs) {
        if (begin >= n_told && begin < slot.n_sent_text) {
            tell(token);
        }
        begin += token.text_to_send.size();
    }
}

// The part of the answer that is sent with a token: whole characters.
template <typename Slot, typename Token>
common_chat_input server_h2o_part(const Slot & slot, const Token & token) {
    const auto whole = [&](size_t n) { // the last whole character before byte n ends there
        const size_t begin = n < 4 ? 0 : n - 4;
        return begin + validate_utf8(slot.generated.text.substr(begin, n - begin));
    };
    size_t begin = 0;
    for (const auto & other : slot.generated_token_probs) {
        const size_t end = begin + other.text_to_send.size();
        if (&other == &token) {
            return slot.generated.substr(whole(begin), whole(std::min(end, slot.n_sent_text)) - whole(begin));
        }
        begin = end;
    }
    return {};
}

// The tokens at the end that the answer has no part of.
template <typename Slot>
std::vector<llama_token> server_h2o_untold(const Slot & slot, const std::string & answer) {
    std::vector<llama_token> tokens;
    size_t begin = 0;
    for (const auto & token : slot.generated_token_probs) {
        if (begin >= answer.size()) {
            tokens.push_back(token.tok);
        }
        begin += token.text_to_send.size();
    }
    return tokens;
}

// An answer in the form of its door, or the last events of its stream, with its warnings, and why it ended.
common_json server_h2o_end(server_task_result_cmpl_final & result);

// Several answers to a request are counted together.
void server_h2o_add_usage(common_json & usage, const common_json & other);

// The same for streams, whose last event has the usage: `sum` is that of the choices that have ended.
void server_h2o_sum_usage(common_json & events, common_json & sum, bool is_last);

// What the end of an answer needs of its request.
struct server_h2o_chat {
    std::string              name;     // server/thoughts.h
    std::vector<std::string> warnings; // sentences about parts that are left out
};

server_h2o_chat server_h2o_chat_of(const common_json & request);
