#pragma once

#include "chat.h"

#include <string>

// Thoughts of the latest answers. A client need not send them back: without them its next prompt would leave the slot's
// text at the first one. A chat is known by its owner (server/requests.h) and what the client has of it.

// Puts back the thoughts that a request has left out, where the template keeps them; not if it has
// "preserve_reasoning": false. Returns the chat's name.
std::string server_h2o_recall_thoughts(common_chat_templates_inputs & inputs);

// Keeps the thoughts of an answer to this chat.
void server_h2o_keep_thoughts(const std::string & chat, const common_chat_msg & answer);
