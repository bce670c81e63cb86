#pragma once

#include "chat.h"

#include <exception>
#include <string>
#include <vector>

// Templates such as Gemma's know no results of tools, and refuse two messages of one role in a row. Then results are
// the user's, calls are text, and neighbours of one role are one message. False if there is nothing to change.
bool h2o_chat_plain_roles(std::vector<common_chat_msg> & messages);

// What an answer adds to the last message of the assistant, which it has continued.
common_chat_msg h2o_chat_added(common_chat_msg message, const common_chat_msg & begun);

// What of the tools the model is not told, or a grammar of their schemas does not keep, in sentences.
std::vector<std::string> h2o_chat_left_out(
        const common_chat_templates * templates, const std::vector<common_chat_tool> & tools);

// What a template makes of a chat; if it refuses the roles of its messages, of plain ones.
template <typename F>
common_chat_params h2o_chat_apply(
        F apply, const common_chat_templates * templates, const common_chat_templates_inputs & inputs) {
    try {
        return apply(templates, inputs);
    } catch (const std::exception &) {
        auto plain = inputs;
        if (!h2o_chat_plain_roles(plain.messages)) {
            throw;
        }
        return apply(templates, plain);
    }
}
